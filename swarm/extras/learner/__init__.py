"""One learner and the nodes that follow it (ECHO-2): `swarm learn`, `swarm work`, `swarm join --follow`, `swarm plan`.

learner.py ◀── buffer.py ◀── audit.py, sampled.py    updates on workers' groups (updater.py), fresh and truly sampled
workforce.py ◀── heartbeats.py, capacity.py          how many workers it needs, and which
follower.py                                          a worker: samples with the newest snapshot
packing.py, snapshots/                               what a snapshot is, and how it spreads
roles/                                               the nodes themselves, which stand on `nodes/`
"""
