"""Workers and learner at once: waiting, staleness, cost: `swarm bench overlap`."""
