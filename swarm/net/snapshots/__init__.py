"""A learner's snapshots on their way through a tree of relays: chunks, deltas, plan, publisher, subscribers.

What is in a snapshot is `policy/snapshot.py`'s; when a new one is wanted is `central/`'s.
"""
