"""Subcommands that look at nodes: the page, the same in a terminal, their peers, samples and health."""
