"""A learner's snapshots on their way to those who follow it: `publish.Publisher` and `subscribe.Subscriber`.

Both answer others by `serving.Serving`. What is in a snapshot is `policy/snapshot.py`'s; when a new one is wanted is
`central/`'s.
"""
