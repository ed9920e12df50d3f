"""What goes with `capture.source: xds` in a pipeline file."""

from __future__ import annotations

from penstock.config.document import Document, Fault
from penstock.config.source import SourceKind, check_folder


def check_xds(document: Document) -> list[Fault]:
    """Find what does not go with a folder of XDS documents, or is missing."""
    return check_folder(
        document,
        published="XDS documents are published already; they can be applied",
        connection="XDS documents are read from capture.path, through no connection",
        row_triggers="documents have no triggers",
        rules="rules do not go with capture.source xds",
    )


XDS = SourceKind("xds", "from a folder of XDS documents", check_xds)
