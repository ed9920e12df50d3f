"""What goes with `capture.source: xds` in a pipeline file."""

from __future__ import annotations

from penstock.config.document import Document, Fault
from penstock.config.source import ONLY_TRIGGERS_KNOW, SourceKind


def check_xds(document: Document) -> list[Fault]:
    """Find what does not go with a folder of XDS documents, or is missing."""
    unfit = {
        "capture.connection": "XDS documents are read from capture.path, through no connection",
        "capture.row_triggers": "documents have no triggers",
        "capture.changes_of": ONLY_TRIGGERS_KNOW,
    }
    return (
        document.unfit({"publish": "XDS documents are published already; they can be applied"})
        or document.unfit({"rules": "rules do not go with capture.source xds"})
        or [*document.unfit(unfit), *document.missing("capture", ["path"])]
    )


XDS = SourceKind("xds", "from a folder of XDS documents", check_xds)
