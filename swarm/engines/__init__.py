"""Generation: questions in, completions with log-probabilities out.

`choice.py` picks an engine from the configuration. Engines depend on the policy, not on the round, the network or
training.
"""
