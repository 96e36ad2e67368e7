"""Our own generation loop over a Hugging Face model, with continuous batching.

`engine.py` is the engine; the other files are its slots, scheduler and cache.
"""
