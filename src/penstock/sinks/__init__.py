"""Where a pipeline publishes to: a folder for each sink, with what the driver does and what its tasks do."""
