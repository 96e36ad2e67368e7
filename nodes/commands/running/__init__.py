"""Subcommands that run nodes beside the roles: the demo and sweeps, a node as a service, and its key."""
