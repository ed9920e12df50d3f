"""Db2's log, as its read-log interface returns it: buffers of records, turned into committed changes."""
