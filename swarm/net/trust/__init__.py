"""Whom to believe and how much: admission budgets, accounts, bans, and the exchange that the round uses.

No library's network is imported here.
"""
