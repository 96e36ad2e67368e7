"""What is done with one group of completions, whoever learns from it: grade again, compare, judge its plausibility.

For peers and for a central learner alike. No mixing and no update: those are in `sapo/` and `central/`.
"""
