"""DbWatcher's XML messages: `message` has them as values, `writer` and `reader` as XML, `changes` as transactions.

Nothing here knows a database, Spark or a file.
"""
