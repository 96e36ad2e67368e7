"""Capabilities that can be deleted: each folder is one, and the core finds it by name only.

An extra imports the core and no other extra. Its tests are in `tests/extras/NAME`.
"""
