"""Records as bytes: identities, signatures, encoding and its bounds, storage, large records.

No connection is made here, and nothing is decided about whom to believe.
"""
