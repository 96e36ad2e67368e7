"""Time and memory of an update, compared with TRL's: `swarm bench updater`."""
