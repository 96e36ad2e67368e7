"""The network by hivemind's Go daemon: transport, session, relay, and the directory of peers in its DHT.

The DHT runs in a process of its own (`directory_process.py`); nothing else imports hivemind.
"""
