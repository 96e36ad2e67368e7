"""When a node works: what a person asked with `swarm pause`, and hours, power and GPU as the configuration has them.

It says whether and why to pause, and until when, and holds a node between its rounds. What the node gives up meanwhile
is its role's business.
"""
