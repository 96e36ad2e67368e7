"""A model as a judge, and rewards over HTTP: queries for groups, a process that asks, its queue, budget and cache.

Imports no torch: the model's own process does. `verifier.py` adds the judge's rewards to those of any verifier.
"""
