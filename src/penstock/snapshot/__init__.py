"""The first copy of tables, as of one position, while the source goes on working."""
