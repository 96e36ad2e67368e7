"""Generation by vLLM, in this Python or in another one.

`server.py`, `scheduler.py`, `arguments.py`, `messages.py`, `reading.py` and `pieces.py` run in that Python and import
only `swarm.types` from elsewhere in this project.
"""
