"""Changes that another pipeline published to an archive of change files."""
