"""Changes published as Debezium's change events, each source transaction whole, exactly once."""
