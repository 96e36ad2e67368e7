"""What training takes of a device's memory, and how to fit into it.

Recovery after it has run out is in `policy/out_of_memory.py`.
"""
