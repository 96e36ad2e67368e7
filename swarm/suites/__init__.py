"""Suites: named evaluations on held-out questions, several completions each, with intervals.

When a node asks them is in `nodes/roles/suites.py`; accuracy on the training tasks is in `swarm/evaluation.py`.
"""
