"""What a node gains by learning with others, and what hostile ones cost it: `swarm bench sharing`."""
