"""Time and memory of an update, beside TRL's: `swarm bench updater`."""
