"""Verification in worker processes: the pool, the worker, and the messages between them.

`inline.py` works without processes, for simulations.
"""
