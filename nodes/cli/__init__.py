"""The `swarm` command. Each subcommand imports its modules when it runs, so that help and errors appear at once."""

from nodes.interrupts import Ending

with Ending():
    from nodes.cli.command import app, main

__all__ = ["app", "main"]
