"""Does the swarm help?

`control.py` measures it against a node that learns alone, `verdict.py` puts a measurement or the nodes' own estimates
into the words of all views, `comparison.py` and `picture.py` compare several swarms.
"""
