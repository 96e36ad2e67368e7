"""Demos with real language models: their tasks and sizes, and whether their nodes fit into memory."""
