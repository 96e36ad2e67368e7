"""Subcommands that tell what there is to set and to choose from, and show the documents."""
