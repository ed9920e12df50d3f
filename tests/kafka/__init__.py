"""A real Kafka broker, Kafka Connect with Debezium, and a schema registry, on free ports of the loopback."""
