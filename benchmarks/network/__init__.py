"""How records spread, through faults and attacks: `swarm bench network`."""
