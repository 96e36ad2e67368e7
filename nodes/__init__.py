"""The `swarm` command: `commands/` holds its subcommands, `roles/` the processes that it starts.

This package assembles the parts of `swarm/`; nothing in `swarm/` imports it.
"""
