"""Subcommands that tell what there is to choose from, objectives and families of models, and show the documents."""
