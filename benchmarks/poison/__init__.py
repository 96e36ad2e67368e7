"""What poisoned groups do to honest nodes: `swarm bench poison`."""
