"""`python -m nodes.cli`, for processes of torchrun and for children: the `swarm` command."""

from nodes.cli import main

if __name__ == "__main__":
    main()
