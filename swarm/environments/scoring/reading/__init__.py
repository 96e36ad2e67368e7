"""What a text says before values are compared: its characters, units, regions, and where prose states an answer."""
