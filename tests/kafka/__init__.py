"""A real Kafka broker, Kafka Connect with Debezium's connectors, and a schema registry, on free ports.

The fixtures are in tests/conftest.py: `kafka`, `connect_worker`, `sink_worker`, `registry` and `logical_server` start
once for all tests, `logical_database` is a test's own. A test makes its own connectors and topics:

    with DebeziumEngine(connect_worker, kafka, logical_database, "shop", **WITH_SCHEMAS) as engine:
        engine.wait_for_streaming()
        with writing(logical_database) as (connection, xid):
            connection.execute("INSERT INTO t VALUES (1)")
        engine.wait_for(xid)
        records = kafka.read(engine.topic("public.t"), count=1)

`python -m tests.kafka.record` and `python -m tests.kafka.golden` make the events in tests/data/debezium.
"""
