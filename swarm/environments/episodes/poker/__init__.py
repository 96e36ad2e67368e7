"""Heads-up poker on PokerKit's rules: Kuhn poker and no-limit Texas hold'em against scripted opponents.

Only `mixture.py` imports these modules, and only for a run that has such a task.
"""
