"""Distribution of a learner's snapshots to its followers: `publish.Publisher` and `subscribe.Subscriber`.

Both answer other peers through `serving.Serving`. `packing.py` defines a snapshot's content; `learner.py` decides
when to publish one.
"""
