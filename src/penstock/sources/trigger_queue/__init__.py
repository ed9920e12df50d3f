"""Changes that triggers wrote into a log inside the source database."""
