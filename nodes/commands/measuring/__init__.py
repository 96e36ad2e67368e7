"""Subcommands that measure a policy or the software, and compute what a learner needs."""
