"""Archives of change files."""
