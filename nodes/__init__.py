"""The `swarm` command: its subcommands in `commands/`, the processes that it starts in `roles/`.

Here parts of `swarm/` are put together; nothing in `swarm/` imports this.
"""
