"""Subcommands that look at nodes while they run: the page, and the same in a terminal."""
