"""What goes with `capture.source: change_files` in a pipeline file."""

from __future__ import annotations

from penstock.config.document import Document, Fault
from penstock.config.source import SourceKind


def check_change_files(document: Document) -> list[Fault]:
    """Find what does not go with an archive of change files, or is missing."""
    refused = {"publish": "what comes from change files is published already; it can be applied"}
    unfit = {
        "capture.connection": "change files are read from capture.path, through no connection",
        "capture.row_triggers": "an archive has no triggers",
        "capture.changes_of": "an archive holds what its pipeline has captured",
    }
    return document.unfit(refused) or [*document.unfit(unfit), *document.missing("capture", ["path"])]


CHANGE_FILES = SourceKind("change_files", "from an archive of another pipeline's", check_change_files)
