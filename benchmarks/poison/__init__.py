"""The effect of poisoned groups on honest nodes: `swarm bench poison`."""
