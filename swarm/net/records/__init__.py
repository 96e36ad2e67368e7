"""Records as bytes: identities, signatures, encoding with its limits, storage, large records.

This package opens no connections and makes no trust decisions.
"""
