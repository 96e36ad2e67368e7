"""Generation by vLLM, in this Python or in another one.

`server.py`, `scheduler.py`, `arguments.py`, `messages.py` and `reading.py` run in that Python; from the rest of this
project they import `swarm.types` only.
"""
