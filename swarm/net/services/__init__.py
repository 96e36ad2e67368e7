"""What members ask of each other, one module a request, and the doors that all requests come through.

Protocol names, messages and limits; the libraries that carry them are in `hivemind/` and `libp2p/`.
"""
