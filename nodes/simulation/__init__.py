"""Whole swarms on one machine, of nodes as `swarm join` makes them: in memory, or as processes over a real network.

A cell is one swarm with one seed; what a sweep or a benchmark shows is computed from the results of its cells. What a
command prints is in `nodes/commands/`.
"""
