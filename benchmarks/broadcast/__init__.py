"""How fast a snapshot reaches all workers: `swarm bench broadcast`."""
