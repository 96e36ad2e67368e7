"""Policies that need no hub: made once on this machine from a package, then cached.

The embedded policy, which is trained here, is `policy/tiny.py`; it uses the same cache.
"""
