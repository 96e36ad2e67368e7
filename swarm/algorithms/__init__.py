"""Advantages, importance weights, KL estimators and losses: pure tensor functions.

Imports nothing else from this project except the base types of settings and figures. A new loss is a class in
`losses.py`, or anywhere else: `update.objective: mine.py:MyLoss`.
"""
