"""Reads files of pictures, sounds and clips that strangers made, in the worker only, within limits.

What a decoder makes of a file is compared between nodes byte by byte, so everything after the decoder is integer
arithmetic: the size of pictures, the rate of sounds, the colours of clips.
"""
