"""Spark: the stream's schema, the session, and the jobs. Thin on purpose."""
