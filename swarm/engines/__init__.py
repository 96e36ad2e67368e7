"""Generation: questions in, completions with log-probabilities out.

`choice.py` picks an engine from the configuration. Engines know the policy, not the round, the network or training.
"""
