"""The py-libp2p network, for systems on which hivemind's daemon does not run.

It is interoperable with hivemind's nodes. Importing it imports trio; never import both libraries in one process.
"""
