"""Demos with real language models: their tasks and sizes."""
