"""The subcommands that are not a role, in folders as `nodes/cli/` has them.

Commands may start roles; roles do not import commands.
"""
