"""Recorded rollouts and demonstrations as training data: files of them, and supervised steps before the first round."""
