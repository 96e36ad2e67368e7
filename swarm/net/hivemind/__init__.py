"""The hivemind network, on its Go daemon: transport, session, relay, and the peer directory in its DHT.

The DHT runs in a separate process (`directory_process.py`). Only this folder imports hivemind.
"""
