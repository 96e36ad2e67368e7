"""Subcommands about a node's process: run it as a service of the machine."""
