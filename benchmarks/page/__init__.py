"""What the page of a node costs it, and how soon it is there: `swarm bench page`."""
