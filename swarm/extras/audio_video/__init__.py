"""Sounds and clips: decoders of files in data sets, and generated tones and clips."""
