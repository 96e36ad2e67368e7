"""Verification in worker processes: the pool, the worker, and the messages between them.

`inline.py` does the same without processes, for simulations.
"""
