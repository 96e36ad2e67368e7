"""Measurements that people can repeat: `swarm bench NAME` or `python -m benchmarks.NAME`."""

from swarm import torchao

torchao.hide()  # before transformers is imported, which would import it
