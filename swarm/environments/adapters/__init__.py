"""Environments of other libraries as tasks of a run. No module imports these at the top: each needs an extra.

Their code runs where ours does, in the verification workers.
"""
