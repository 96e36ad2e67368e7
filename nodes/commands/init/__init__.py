"""`swarm init`: asks, looks at the machine, writes a configuration that fits it, and says what it will cost."""
