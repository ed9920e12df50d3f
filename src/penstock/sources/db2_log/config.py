"""What goes with `capture.source: db2_log` in a pipeline file."""

from __future__ import annotations

from penstock.config.document import Document, Fault
from penstock.config.source import ONLY_TRIGGERS_KNOW, SourceKind


def check_db2_log(document: Document) -> list[Fault]:
    """Find what does not go with buffers of Db2's log, or is missing."""
    refused = {"publish": "what comes from buffers of a log can be applied, and not be published"}
    unfit = {
        "capture.connection": "buffers of Db2's log are read from capture.path, through no connection",
        "capture.row_triggers": "buffers of a log have no triggers",
        "capture.changes_of": ONLY_TRIGGERS_KNOW,
    }
    return document.unfit(refused) or [*document.unfit(unfit), *document.missing("capture", ["path"])]


DB2_LOG = SourceKind("db2_log", "from buffers of Db2's log", check_db2_log)
