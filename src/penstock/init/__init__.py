"""Writes the first pipeline file. See README.md."""
