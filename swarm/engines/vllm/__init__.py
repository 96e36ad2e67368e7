"""Generation by vLLM, in this Python or in another that has it.

`server.py` and `messages.py` run there, and import nothing of this project but `swarm.types`.
"""
