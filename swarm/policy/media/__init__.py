"""How a policy reads pictures, sounds and clips.

    part ── processor.py: tokens, and what the encoder reads ──▶ ids.py: a medium, by places in a sequence of ids
                                                                    │
    forward pass ◀── inputs.py: embeddings, features at their places ◀── encoder.py: features, once a medium

`opening.py` makes all of it for a model. A sequence stays a list of integers: those from `FIRST_PLACE` on are places of
features. So all that cuts, joins and compares sequences needs to know nothing of media.
"""
