"""Inputs of strangers and of files, mutated: each target refuses them in words, or takes them.

`test_fuzz.py` tries some of each in a few seconds; `python -m tests.fuzz` (`make fuzz`) goes on for as long as asked,
guided by coverage. What it finds is kept in `corpus/TARGET/`, which both begin with.
"""
