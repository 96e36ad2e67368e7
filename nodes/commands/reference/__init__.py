"""Subcommands that list what there is to choose from: objectives, and families of models."""
