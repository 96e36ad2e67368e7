"""`swarm tasks`: lists what can be learned, and tries what a configuration asks."""
