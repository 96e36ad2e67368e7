"""Policies that need no hub: made once on this machine from a package, then cached.

Embedded policies are trained here and kept in the same cache: `policy/tiny.py`, and `sees.py` for pictures.
"""
