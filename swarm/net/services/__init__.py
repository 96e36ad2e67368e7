"""Services between members, one module per request type, and the admission of all request streams.

Protocol names, messages and limits; `hivemind/` and `libp2p/` carry them.
"""
