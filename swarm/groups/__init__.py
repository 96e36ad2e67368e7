"""Operations on one group of completions: build, share, regrade, compare, check plausibility.

Peers and a central learner use them alike; mixing is in `sapo/`, updates are in `training/`.
"""
