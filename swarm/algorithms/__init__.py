"""Advantages, importance weights, KL estimators and losses: pure tensor functions.

Nothing else of this project is imported here. A new loss is a file in `losses/`.
"""
