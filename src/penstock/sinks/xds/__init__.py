"""XDS documents of an event log, in a folder or in a topic of Kafka."""
