"""Swarms compared: the outcome of each, and tables, learning curves and pictures of several.

What one swarm's nodes write and show is in `swarm/telemetry/`.
"""
