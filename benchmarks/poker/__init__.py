"""Poker learned by a swarm of embedded policies, and the exact values of Kuhn poker to compare with."""
