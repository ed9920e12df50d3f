"""Event log tables, which the triggers of identity management fill, as a source.

`rows` says what a row means, `build` what becomes of many, `channel` runs the cycle of polling, delivering and writing
back. The SQL is in the dialect, `dialects/postgres/source/event_log.py`.
"""
