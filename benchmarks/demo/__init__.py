"""Where the processor time of a demo goes: `swarm bench demo`."""
