"""Decodes untrusted files of images, audio and video, in the worker only, within limits.

What a decoder makes of a file is compared between nodes byte by byte, so everything after the decoder is integer
arithmetic: the size of images, the rate of audio, the colours of video.
"""
