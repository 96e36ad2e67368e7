"""Audio and video: decoders of files in data sets, and tasks with generated tones and clips."""
