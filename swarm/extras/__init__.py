"""Optional capabilities, one folder each: found by name, never imported by the core."""
