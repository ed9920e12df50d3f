"""Debezium change events: bytes of Kafka records <-> changes. Pure: no Kafka, no Spark, no I/O.

Reading goes `record` (what lay on the topic) -> `parse` (JSON, or `avro`) -> `envelope` (what kind of record it is, and
where it belongs, with `source`) -> `decode` (its rows, by `types`) -> `join` (the changes of a transaction).
"""
