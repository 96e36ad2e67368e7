"""Experts of mixture-of-experts models, computed in half precision.

Which of them are chosen is recorded in `policy/routing.py`.
"""
