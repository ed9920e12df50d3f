"""Penstock captures committed changes and applies them to other databases, transaction by transaction."""

__version__ = "0.1.0"
