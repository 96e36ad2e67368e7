"""hivemind's go daemon: its process, its control protocol, the streams that peers open, and a relay's limits.

With `../dht.py` the only code that uses hivemind's private interfaces. Importing the modules imports parts of hivemind:
import them only to start a network.
"""
