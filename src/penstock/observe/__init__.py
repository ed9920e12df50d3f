"""Traces and lineage of runs, for OpenTelemetry and OpenLineage; off unless asked for. Needs the extra `observe`."""
