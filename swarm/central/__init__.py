"""One learner and its workers: buffer, bounded staleness, workforce and capacity (ECHO-2).

Pure logic over `swarm.protocols`, as in `sapo/`. How snapshots travel is in `net/snapshots/`.
"""
