"""Own episodes between an engine and a verifier: a fixed set of questions (`play.py`), or a stream that never ends
(`flow.py`). `table.py` holds those that are not over.
"""
