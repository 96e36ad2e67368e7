"""`python -m swarm`: the `swarm` command."""

from nodes.cli import main

main()
