"""`python -m swarm`: the `swarm` command."""

from nodes.cli import main

if __name__ == "__main__":
    main()
