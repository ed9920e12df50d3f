"""The command line: one file per command, thin over `pipeline.Pipeline`."""
