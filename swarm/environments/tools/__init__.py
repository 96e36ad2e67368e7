"""Tools that a policy calls before it answers: text to text, the same on every machine.

What a call does outside its own memory, such as a search, does not belong here.
"""
