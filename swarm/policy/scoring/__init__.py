"""From hidden states to log-probabilities of chosen tokens: the output head, and what sampling's filters leave.

Forward passes over rows are in `policy/logprobs.py`.
"""
