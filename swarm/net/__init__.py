"""The network: signed records by gossip, requests between peers, discovery, snapshots.

Rooms, each importing only those before it: records, addresses, trust, snapshots, services, membership; then one folder
a library, `hivemind/` and `libp2p/`. `backends.py` picks one. No torch, no policy, no tasks.
"""
