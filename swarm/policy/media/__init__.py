"""How a policy reads images, audio and video.

    part ── processor.py: tokens, and the encoder's inputs ──▶ features.py: a medium, its slots in a sequence of ids
                                                                  │ features, once a medium
    forward pass ◀── inputs.py: embeddings, features in their slots ◀┘

A sequence stays a list of integers: those from `FIRST_SLOT` on are slots for features. So all that cuts, joins and
compares sequences needs to know nothing of media.
"""
