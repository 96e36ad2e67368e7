"""The public peer that the network is compared with, in a virtual environment of its own."""
