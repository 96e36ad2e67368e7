"""How attacks slow down live nodes: `swarm bench resilience`."""
