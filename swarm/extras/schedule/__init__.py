"""Reasons to pause that this machine gives: its battery, and other programs on its NVIDIA GPUs."""
