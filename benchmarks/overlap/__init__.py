"""Workers and learner concurrently: waiting, staleness, cost: `swarm bench overlap`."""
