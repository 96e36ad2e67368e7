"""Which objectives hold up on stale rollouts: `swarm bench staleness`."""
