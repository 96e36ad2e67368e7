"""The cost of a swarm larger than one machine, from a model of gossip: `swarm bench scale`."""
