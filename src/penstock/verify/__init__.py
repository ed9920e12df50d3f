"""Comparing source and target, row by row, while changes flow."""
