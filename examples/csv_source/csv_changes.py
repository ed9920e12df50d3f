"""Changes in CSV files as a source: `capture: {source: "csv_changes:open_csv", path: changes, tables: [...]}`.

The folder has a file `tables.json`, and a file `<position>.csv` for every few transactions, named after the last of
them. README.md beside this file shows both. A file is put in place whole, by renaming it, and never altered.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pyarrow as pa

from penstock.change import Change, Op, TableName, Transaction
from penstock.errors import MalformedInputError
from penstock.history import HistoryError
from penstock.logical import LogicalType
from penstock.position import START, Scn
from penstock.schema import Column, TableSchema, Unique
from penstock.sources.recorded import RecordedConnector, batches_of, slice_of
from penstock.storage import Storage
from penstock.stream import Slice, TableVersion
from penstock.values import decode_image

OPS = {op.value: op for op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE)}


@dataclass(frozen=True)
class CsvChanges:
    """Implements `penstock.sources.recorded.Recording`."""

    storage: Storage

    @property
    def label(self) -> str:
        """The folder."""
        return self.storage.label

    @property
    def id(self) -> str:
        """What `tables.json` says."""
        return str(self._described()["id"])

    def tables(self) -> Sequence[TableVersion]:
        """Return the tables that `tables.json` describes; each has one version."""
        tables = [_schema(table) for table in self._described()["tables"]]
        return [TableVersion(n, table, table.to_definition(), table.name) for n, table in enumerate(tables, 1)]

    def end(self) -> Scn:
        """Return the position that the last file is named after."""
        return Scn(max((position for position, _ in self._files()), default=START))

    def next_slice(self, after: Scn) -> Slice | None:
        """Return what follows a position in the first file that reaches beyond it."""
        return next((slice_of(after, self._read(name)) for position, name in self._files() if position > after), None)

    def proof_at(self, position: Scn) -> str:
        """Return a digest of the file that a position lies in."""
        name = next((name for last, name in self._files() if last >= position > START), None)
        return "" if name is None else hashlib.sha256(self.storage.read(name)).hexdigest()[:16]

    def hold_against(self, proof: str, position: Scn) -> None:
        """Make sure that the file of a position is the one that was read; raises a `HistoryError` otherwise."""
        if self.proof_at(position) != proof:
            raise HistoryError(f"the file of position {position} holds something else than was read", where=self.label)

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice, file by file; raises a `MalformedInputError` that names a line."""
        tables = [version.table for version in self.tables()]
        keys = {table.name: table.primary_key.columns for table in tables if table.primary_key is not None}
        before = int(START)
        for position, name in self._files():
            if part.after < position and before < part.end:
                found = (txn for txn in self._read(name) if part.after < txn.commit_scn <= part.end)
                yield from batches_of(found, keys)
            before = position

    def _files(self) -> Sequence[tuple[int, str]]:
        names = [name for name in self.storage.names("") if name.removesuffix(".csv").isdecimal()]
        return sorted((int(name.removesuffix(".csv")), name) for name in names)

    def _described(self) -> Mapping[str, Any]:
        try:
            found = json.loads(self.storage.read("tables.json"))
            _ = [_schema(table) for table in found["tables"]], found["id"]
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            what = f"tables.json does not describe tables: {type(exc).__name__}"
            raise MalformedInputError(what, where=f"{self.label}/tables.json") from exc
        described: Mapping[str, Any] = found
        return described

    def _read(self, name: str) -> Iterator[Transaction]:
        text = self.storage.read(name).decode()
        rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        last = START
        for position, changes in groupby(self._changes(name, rows), key=lambda found: found[0]):
            of = list(changes)
            if position <= last:
                raise MalformedInputError("transactions are not in order", where=f"{self.label}/{name}: {position}")
            last = Scn(position)
            yield Transaction(
                position, str(position), of[0][1], [replace(x, change_seq=n) for n, (*_, x) in enumerate(of)]
            )
        if last != int(name.removesuffix(".csv")):
            what = f"the last transaction is at position {last}, not at the one that the file is named after"
            raise MalformedInputError(what, where=f"{self.label}/{name}")

    def _changes(self, name: str, rows: csv.DictReader[str]) -> Iterator[tuple[int, int, Change]]:
        """Each change, with its position and its time of commit."""
        try:
            for row in rows:
                table = TableName(*row["table"].split("."))
                images = (decode_image(row[image]) if row[image] else None for image in ("before", "after"))
                at = (datetime.fromisoformat(row["committed_at"]) - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
                yield int(row["position"]), at, Change(0, OPS[row["op"]], table, 1, *images)
        except (ValueError, KeyError, TypeError, AttributeError, csv.Error, MalformedInputError) as exc:
            # Not what the exception says: it may repeat a value.
            what = "not a change: position, committed_at, op, table, before and after, as README.md says"
            raise MalformedInputError(what, where=f"{self.label}/{name}, line {rows.line_num}") from exc


_MICROSECOND = timedelta(microseconds=1)


def _schema(table: Mapping[str, Any]) -> TableSchema:
    key = tuple(table["key"])
    columns = [
        Column.of(name, LogicalType.parse(kind), is_nullable=name not in key) for name, kind in table["columns"].items()
    ]
    primary_key = Unique(f"{table['name']}_pkey", key, key) if key else None
    return TableSchema(TableName(table["schema"], table["name"]), tuple(columns), primary_key)


def open_csv(storage: Storage) -> RecordedConnector:
    """Make a source of a folder; nothing is touched yet."""
    return RecordedConnector(CsvChanges(storage))
