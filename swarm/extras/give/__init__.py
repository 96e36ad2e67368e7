"""Gives groups without a policy: answers of an OpenAI-compatible server, graded here and shared. No torch."""
