"""Trust: admission budgets, accounts, bans, and the group exchange that the round uses.

No network library is imported here.
"""
