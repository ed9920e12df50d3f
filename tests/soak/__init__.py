"""Faults at random for as long as asked: `python -m tests.soak --minutes 60`."""
