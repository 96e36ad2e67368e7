"""Distribution of a learner's snapshots to its followers: `publish.Publisher` and `subscribe.Subscriber`.

Both answer other peers through `serving.Serving`. `policy/snapshot.py` defines a snapshot's content; `central/` decides
when to publish one.
"""
