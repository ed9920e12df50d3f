"""Writes the first pipeline file of two databases. See README.md."""
