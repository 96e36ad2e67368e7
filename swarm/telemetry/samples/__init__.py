"""Samples of groups with what became of them, for people: `samples.jsonl` in a node's directory.

Nothing reads them back into training.
"""
