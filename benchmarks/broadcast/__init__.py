"""How fast a snapshot reaches everyone: `swarm bench broadcast`."""
