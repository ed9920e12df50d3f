"""Changes written for others to read."""
