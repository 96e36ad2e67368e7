"""The node of `swarm give`, which stands on `nodes/`."""
