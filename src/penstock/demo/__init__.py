"""A demonstration on PostgreSQL servers of its own: nothing to install, nothing left behind."""
