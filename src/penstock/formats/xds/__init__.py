"""XDS, the events of identity management: `event` has them as values, `writer` and `reader` as XML, `table_key` and
`values` the texts inside.

Nothing here knows a database, Spark or a file.
"""
