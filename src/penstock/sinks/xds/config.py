"""What goes with `publish.format: xds` in a pipeline file."""

from __future__ import annotations

from penstock.config.document import Document, Fault


def check_xds_documents(document: Document) -> list[Fault]:
    """Find what does not go with XDS documents, and what goes with them alone."""
    is_kafka = document.value("publish", "to") == "kafka"
    is_xds = document.value("publish", "format") == "xds"
    faults = []
    if not is_kafka or document.value("publish", "format") not in ("xds", "dbwatcher"):
        faults += document.unfit({"publish.topic": "goes with XDS documents or DbWatcher messages in Kafka"})
    elif is_xds and document.value("capture", "event_log", "batch_size") not in (None, 1):
        faults.append(document.fault(("capture", "event_log", "batch_size"), "a record of Kafka holds one event"))
    if is_xds and document.value("capture", "source") != "event_log":
        faults.append(document.fault(("publish", "format"), "xds goes with capture.source event_log"))
    return faults
