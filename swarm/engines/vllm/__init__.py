"""Generation by vLLM, in this Python or in another one.

`server.py` and `messages.py` run in that Python and import only `swarm.types` from this project.
"""
