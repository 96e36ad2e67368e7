"""Frozen matrices of 8 or 4 bits, beside which adapters learn: QLoRA. Start at `layers.py`."""
