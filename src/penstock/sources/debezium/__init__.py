"""Debezium's change events as a source: read from Kafka topics or files, put together into transactions again."""
