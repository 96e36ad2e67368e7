"""A peer-to-peer client for collaborative RL post-training of language models.

Each concept has its own folder; the SAPO round is `sapo/round.py`. Processes, command line and roles live in `nodes/`.
`types.py` holds the records that all parts share, `protocols.py` their interfaces.
"""
