"""Messages to people about a run that needs them: `on_error` in a pipeline file; see docs/monitoring.md."""
