"""Examines everything that a pipeline needs, and packs what a bug report needs. See README.md."""
