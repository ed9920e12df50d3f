"""What `capture.source: db2_log` means in a pipeline file, and what goes with it."""

from __future__ import annotations

from penstock.config.document import Document, Fault
from penstock.config.source import SourceKind, check_folder
from penstock.storage import Storage


def check_db2_log(document: Document) -> list[Fault]:
    """Find what does not go with buffers of Db2's log, or is missing."""
    return check_folder(
        document,
        published="what comes from buffers of a log can be applied, and not be published",
        connection="buffers of Db2's log are read from capture.path, through no connection",
        row_triggers="buffers of a log have no triggers",
    )


def _open(storage: Storage) -> object:
    from penstock.sources.db2_log.source import open_db2_log

    return open_db2_log(storage)


DB2_LOG = SourceKind("db2_log", "from buffers of Db2's log", check_db2_log, open_folder=_open)
