"""A model as a judge: queries for groups, a process that asks the model, its queue, budget and cache.

Imports no torch: the model's own process does. `verifier.py` adds the judge's rewards to those of any verifier.
"""
