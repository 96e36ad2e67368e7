"""Questions with pictures, sounds and clips that need no data set.

Everything is drawn and sounded by integer arithmetic: the same bytes on every machine.
"""
