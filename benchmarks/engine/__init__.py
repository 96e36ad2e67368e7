"""How fast engines generate: `swarm bench engine`."""
