"""Generation in this project's own loop over a Hugging Face model, with continuous batching.

`engine.py` is the engine; the rest are its slots, scheduler and cache.
"""
