"""Which kind of source a folder is, by the files in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import OperatorError
from penstock.patterns import TablePattern
from penstock.storage import Storage
from penstock.text import count, printable

_SOME = 20
"""So many documents are looked into."""

_DOCUMENT = re.compile(rb"<(nds|sql)\b")
_SCHEMA = re.compile(rb"\bschema=([^,<\s]+)", re.IGNORECASE)

_KINDS = (
    "an archive (archive.json), files of Debezium's events (.jsonl), DbWatcher's messages or XDS documents (.xml),"
    " or buffers of Db2's log (catalog.json)"
)


@dataclass(frozen=True)
class FolderFacts:
    """What a folder holds.

    Attributes:
        kind: As `capture.source` has it.
        seen: The same in a line.
        patterns: Of the tables.
    """

    kind: str
    seen: str
    patterns: tuple[str, ...] = ("*.*",)


def look_into(storage: Storage) -> FolderFacts:
    """Say which kind of source a folder is.

    Raises:
        OperatorError: It is empty or not there, or its files are of no kind that Penstock reads.
        RetryableError: The place is out of reach.
    """
    names = sorted(storage.names(""))
    if not names:
        do = f"name a folder with {_KINDS}"
        raise OperatorError("the folder is empty, or there is none", where=storage.label, do=do)
    if "archive.json" in names:
        records = count(len(storage.names("log")), "record")
        return FolderFacts("change_files", f"an archive of change files: {records} in its log")
    if "catalog.json" in names:
        buffers = [name for name in names if name.endswith(".db2log")]
        return FolderFacts("db2_log", f"Db2's log: a catalogue and {count(len(buffers), 'buffer')}")
    documents = [name for name in names if name.endswith(".xml")]
    for name in documents[:1]:
        found = _DOCUMENT.search(storage.read(name)[:4096])
        files = count(len(documents), "file")
        if found is not None and found[1] == b"nds":
            return FolderFacts("xds", f"XDS documents: {files}", _schemas(storage, documents[:_SOME]))
        if found is not None:
            return FolderFacts("dbwatcher", f"DbWatcher's messages: {files}")
    events = [name for name in names if name.endswith((".jsonl", ".ndjson", ".json"))]
    if events and b'"topic"' in storage.read(events[0]).partition(b"\n")[0]:
        return FolderFacts("debezium", f"change events: {count(len(events), 'file')}")
    what = f"nothing in the folder is what Penstock reads: {count(len(names), 'file')}, {printable(names[0])!r} first"
    raise OperatorError(what, where=storage.label, do=f"name a folder with {_KINDS}")


def _schemas(storage: Storage, documents: list[str]) -> tuple[str, ...]:
    """Patterns of the schemas that associations name: of the target's other tables nothing is said."""
    found = {schema.decode(errors="replace") for name in documents for schema in _SCHEMA.findall(storage.read(name))}
    return tuple(TablePattern.all_of(schema) for schema in sorted(found)) or ("public.*",)
