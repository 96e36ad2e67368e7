"""Measurements that people can repeat: `swarm bench NAME` or `python -m benchmarks.NAME`."""
