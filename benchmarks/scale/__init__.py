"""What a swarm larger than a machine would cost, from a model of gossip: `swarm bench scale`."""
