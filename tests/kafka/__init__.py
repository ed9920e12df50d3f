"""A real Kafka broker, Kafka Connect with Debezium's connectors, and a schema registry, on free ports."""
