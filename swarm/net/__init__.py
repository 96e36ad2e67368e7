"""The network: signed records over gossip, requests between peers, discovery, snapshots.

Folders, each importing only those before it: records, addresses, trust, snapshots, services, membership; then one per
library, `hivemind/` and `libp2p/`. `backends.py` selects one. No torch, no policy, no tasks.
"""
