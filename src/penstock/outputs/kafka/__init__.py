"""Changes published to Kafka, each source transaction whole, exactly once."""
