"""The subcommands that are not a role: one module for each, or for those about one thing.

Commands may start roles; roles do not import commands.
"""
