"""Whether a swarm that runs for hours keeps its size: `swarm bench soak`."""
