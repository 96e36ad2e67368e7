"""Which objectives are stable on stale rollouts: `swarm bench staleness`."""
