"""Environments of the verifiers library in which one agent talks."""
