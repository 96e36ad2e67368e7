"""The network: signed records over gossip, requests between peers, discovery.

Folders, each importing only those before it: records, addresses, trust, services, membership; then one per
library, `hivemind/` and `libp2p/`. `backends.py` selects one. No torch, no policy, no tasks.
"""
