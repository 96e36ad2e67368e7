"""The network by py-libp2p, for systems on which hivemind's daemon does not run.

It speaks with hivemind's nodes. Importing it imports trio; never both libraries in one process.
"""
