"""Transactions published as DbWatcher messages."""
