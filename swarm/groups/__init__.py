"""Operations on one group of completions, for peers and for a central learner: build, share, regrade, compare, check
plausibility. Mixing and updates are in `sapo/` and `central/`.
"""
