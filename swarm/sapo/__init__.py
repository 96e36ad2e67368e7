"""The SAPO round: sample, share, receive, filter, mix I local with J external groups, update.

Pure logic over `swarm.protocols`: no torch, no network, no files. Start at `round.py`.
"""
