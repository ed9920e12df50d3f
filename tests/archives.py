"""Archives of change files, made by hand: a small shop whose transactions are known beforehand."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock import change as c
from penstock.archive import Archive
from penstock.change import TableName
from penstock.formats.archive_log import CopiedPart
from penstock.formats.change_file import Encoding
from penstock.position import Anchor, Scn
from penstock.sinks.archive.files import ArchiveWriter, FileWriter, make_archive
from penstock.sources.change_files.span import find_span, read_span
from penstock.storage import Storage
from penstock.values import encode_image

ITEM = TableName("public", "item")
BOOK = TableName("public", "book")
NOON = datetime(2024, 1, 2, 12, tzinfo=UTC)

COLUMN = {"name": "id", "type": "integer", "base_type": "integer"}


def definition(table: TableName) -> Mapping[str, Any]:
    return {
        "schema": table.schema,
        "name": table.name,
        "columns": [COLUMN, {"name": "name", "type": "text", "base_type": "text"}],
        "primary_key": {
            "name": "pk",
            "columns": ["id"],
            "mentions": ["id"],
            "is_deferrable": False,
            "nulls_are_equal": False,
        },
        "uniques": [],
        "exclusions": [],
        "checks": [],
        "foreign_keys": [],
        "referenced_by": [],
        "is_partitioned": False,
        "fires_triggers": False,
        "has_row_security": False,
    }


def row(
    position: int, seq: int = 0, *, of: int = 1, table: TableName = ITEM, op: str = "insert", **columns: Any
) -> dict:
    """One change of the stream; images as mappings."""
    given = {"after": {"id": str(seq), "name": f"n{position}"}} | columns
    images = {name: encode_image(value) for name, value in given.items() if isinstance(value, dict)}
    return {
        c.SOURCE: "shop",
        c.TXN_ID: f"t{position}",
        c.COMMIT_SCN: position,
        c.CHANGE_SEQ: seq,
        c.TXN_CHANGES: of,
        c.COMMITTED_AT: NOON + timedelta(seconds=position),
        c.OP: op,
        c.SCHEMA_NAME: table.schema,
        c.TABLE_NAME: table.name,
        c.TABLE_VERSION: 1,
        c.KEY: encode_image({"id": str(seq)}),
        **given,
        **images,
    }


def transaction(position: int, changes: int = 1, **columns: Any) -> list[dict]:
    return [row(position, seq, of=changes, **columns) for seq in range(changes)]


def stream(*transactions: Iterable[dict]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([change for one in transactions for change in one], c.ARROW_SCHEMA)


COPIED = stream([row(0, n, op="snapshot", after={"id": str(n), "name": "copied"}) for n in range(3)])

STORY: Sequence[pa.RecordBatch] = (
    stream(transaction(1), transaction(2, 3)),
    stream(transaction(5, 2)),
    # More than a small file holds.
    stream(transaction(6, 40), transaction(7)),
    stream(transaction(11), transaction(12), transaction(13, 2)),
)
"""What a source has, batch by batch; positions have gaps."""


def publish(storage: Storage, encoding: Encoding = Encoding.CHANGES, *, max_bytes: int = 4_000) -> ArchiveWriter:
    """Do what a run does: go on where the archive stands, copy what is not copied, then publish the story."""
    writer, files = _begun(storage, encoding, max_bytes)
    if ITEM not in writer.definitions.copied:
        _describe(writer)
        drawn = secrets.token_hex(4)
        for is_last in (False, True):
            part = files.write_copy([COPIED.slice(2) if is_last else COPIED.slice(0, 2)])
            writer.commit(writer.last.end, copies=[CopiedPart(ITEM, drawn, Scn(0), tuple(part), is_last)])
    for batch in STORY:
        end = batch[c.COMMIT_SCN][-1].as_py()
        if end > writer.last.end:
            writer.commit(Scn(end), files.write_changes([batch]), anchor=Anchor(Scn(end), f"m{end}"))
    return writer


def publish_tables(storage: Storage) -> None:
    """Begin an archive that says which tables there are, and that they had no rows."""
    writer = _begun(storage)[0]
    _describe(writer)
    writer.commit(writer.last.end, copies=[CopiedPart(ITEM, secrets.token_hex(4), Scn(0), (), is_complete=True)])


def publish_changes(storage: Storage, end: int, changes: pa.RecordBatch) -> None:
    """Do what a run does that goes on with an archive up to a position."""
    writer, files = _begun(storage)
    writer.commit(Scn(end), files.write_changes([changes]), anchor=Anchor(Scn(end), f"m{end}"))


def _begun(
    storage: Storage, encoding: Encoding = Encoding.CHANGES, max_bytes: int = 4_000
) -> tuple[ArchiveWriter, FileWriter]:
    header = make_archive(storage, "shop", encoding)
    writer = ArchiveWriter(storage)
    epoch = writer.acquire().epoch
    return writer, FileWriter(storage, header.encoding, epoch, max_bytes)


def _describe(writer: ArchiveWriter) -> None:
    tables = [writer.describe(n, table, 1, definition(table), table) for n, table in enumerate((ITEM, BOOK))]
    writer.commit(writer.last.end, tables=tables, anchor=Anchor(Scn(0), "m0"))


def read(storage: Storage) -> pa.Table:
    """All that a reader sees."""
    archive = Archive(storage)
    return pa.Table.from_batches(read_span(archive, find_span(archive, None, None)), c.ARROW_SCHEMA)


def changes_of(rows: pa.Table) -> list[tuple[int, int]]:
    """Position and number of each change that is no row of a copy."""
    wanted = zip(*(rows[name].to_pylist() for name in (c.COMMIT_SCN, c.CHANGE_SEQ, c.OP)), strict=True)
    return [(scn, seq) for scn, seq, op in wanted if op != "snapshot"]


EVERYTHING = changes_of(pa.Table.from_batches(STORY))
