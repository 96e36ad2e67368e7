"""What attacks take from live nodes: `swarm bench resilience`."""
