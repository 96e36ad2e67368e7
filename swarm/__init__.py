"""A peer-to-peer client for collaborative RL post-training of language models.

Every concept has a folder of its own; the SAPO round itself is `sapo/round.py`. Processes, command line and roles are
not here but in `nodes/`. Records that all parts share are in `types.py`, their interfaces in `protocols.py`.
"""
