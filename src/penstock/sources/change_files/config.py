"""What `capture.source: change_files` means in a pipeline file, and what goes with it."""

from __future__ import annotations

from penstock.config.document import Document, Fault
from penstock.config.source import SourceKind, check_folder
from penstock.storage import Storage


def check_change_files(document: Document) -> list[Fault]:
    """Find what does not go with an archive of change files, or is missing."""
    return check_folder(
        document,
        published="what comes from change files is published already; it can be applied",
        connection="change files are read from capture.path, through no connection",
        row_triggers="an archive has no triggers",
        changes_of="an archive holds what its pipeline has captured",
    )


def _open(storage: Storage) -> object:
    from penstock.sources.change_files.connector import ChangeFilesConnector

    return ChangeFilesConnector(storage)


CHANGE_FILES = SourceKind(
    "change_files", "from an archive of another pipeline's", check_change_files, open_folder=_open
)
