"""A folder of XDS documents as a source of a pipeline: implements `sources.recorded.Recording` in the driver.

What a document means may depend on those before it. So the driver reads documents, and a slice carries what they say to
the tasks.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.change import TableName, Transaction
from penstock.database import DatabasePlan
from penstock.patterns import TablePattern
from penstock.position import START, Scn
from penstock.schema import TableSchema
from penstock.sources.recorded import (
    ReadableRecording,
    RecordedAccess,
    RecordedConnector,
    Recording,
    batches_of,
    slice_of,
)
from penstock.sources.xds.documents import Documents
from penstock.sources.xds.transactions import DocumentTransactions
from penstock.storage import Storage
from penstock.stream import Slice, TableVersion
from penstock.text import count

_MOST_DOCUMENTS = 2_000
_MOST_BYTES = 16 << 20

Describe = Callable[[Sequence[str]], Mapping[TableName, TableSchema]]
"""Describes the tables that patterns mean: documents do not say what columns are."""


@dataclass(frozen=True)
class XdsSlice(Slice):
    """A slice that carries its transactions, and the key columns of each table."""

    PER_TRANSACTION: ClassVar[tuple[str, ...]] = (*Slice.PER_TRANSACTION, "told")

    told: NDArray[Any] = field(default_factory=lambda: np.zeros(0, object))
    keys: Mapping[TableName, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Carried:
    """Implements `sources.recorded.Recording`, for tasks: all that there is to read came with the slice."""

    label: str

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice in order."""
        assert isinstance(part, XdsSlice)
        yield from batches_of(part.told, part.keys)


class XdsDocuments:
    """Implements `Recording`."""

    def __init__(self, storage: Storage, patterns: Sequence[str], describe: Describe) -> None:
        """Read a folder; nothing is touched yet.

        Args:
            patterns: Mean the tables that are followed.
        """
        self._storage = storage
        self._patterns = tuple(patterns)
        self._describe = describe
        self._documents = Documents(storage)

    @property
    def label(self) -> str:
        """The folder."""
        return self._storage.label

    @property
    def id(self) -> str:
        """That of the folder, by its place: documents do not say where they belong."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, self._storage.label))

    @cached_property
    def described(self) -> Mapping[TableName, TableSchema]:
        """The tables, as they were when they were asked for first."""
        return self._describe(self._patterns)

    def tables(self) -> Sequence[TableVersion]:
        """Return each table as it is at the target."""
        return [
            TableVersion(zlib.crc32(str(name).encode()), table, table.to_definition(), name)
            for name, table in sorted(self.described.items())
        ]

    def end(self) -> Scn:
        """Return the number of the last document."""
        return max((number for number, _ in self._documents.numbered()), default=START)

    def next_slice(self, after: Scn) -> Slice | None:
        """Return what documents say that follow a position; None when there are none.

        The slice is empty, and ends behind the documents, where they say nothing of the tables that are followed.
        """
        there = self._documents.numbered()
        if not there or there[-1][0] <= after:
            return None
        self._transactions.begin(after)
        known = self._transactions.told_upto
        if self._transactions.has_children and known < after:
            for position, name in there:
                if known < position <= after:
                    self._make(position, name)
        found: list[Transaction] = []
        end, size = after, 0
        for position, name in [one for one in there if one[0] > after][:_MOST_DOCUMENTS]:
            made, bytes_ = self._make(position, name)
            found += [] if made is None else [made]
            end, size = position, size + bytes_
            if size > _MOST_BYTES:
                break
        part = slice_of(after, found)
        if part is None:
            return replace(Slice.empty(after), end=end)
        told = np.empty(len(found), object)
        told[:] = found
        keys = {
            name: table.primary_key.columns for name, table in self.described.items() if table.primary_key is not None
        }
        arrays = {name: getattr(part, name) for name in Slice.PER_TRANSACTION}
        return XdsSlice(after=after, end=end, **arrays, told=told, keys=keys)

    def proof_at(self, position: Scn) -> str:
        """Return what tells the last documents up to a position, see `Documents`."""
        return self._documents.proof_at(position)

    def hold_against(self, proof: str, position: Scn) -> None:
        """Make sure that no document came below a position, or was altered; raises a `HistoryError` otherwise."""
        self._documents.hold_against(proof, position)

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice in order."""
        return Carried(self.label).read(part)

    def count(self) -> int:
        """How many documents there are."""
        return len(self._documents.numbered())

    @cached_property
    def _transactions(self) -> DocumentTransactions:
        patterns = [TablePattern.parse(text) for text in self._patterns]
        return DocumentTransactions(self.described.values(), patterns, self.label)

    def _make(self, position: Scn, name: str) -> tuple[Transaction | None, int]:
        document = self._storage.read(name)
        made = self._transactions.make(position, name, document, self._storage.written_at_us(name))
        return made, len(document)


class XdsConnector(RecordedConnector):
    """Implements `pipeline.connectors.SourceWithCopies`."""

    def __init__(self, storage: Storage, patterns: Sequence[str], describe: Describe) -> None:
        """Read a folder; nothing is touched yet. See `XdsDocuments`."""
        self._documents = XdsDocuments(storage, patterns, describe)
        super().__init__(self._documents)

    @property
    def access(self) -> RecordedAccess:
        """How tasks reach it."""
        return RecordedAccess(Carried(self.label))

    def match(self, patterns: Sequence[str]) -> Sequence[TableName]:
        """Return the tables that patterns mean; raises an `OperatorError` where one means none."""
        do = "make the tables at the target first: XDS documents do not say what columns are"
        return self._told.match(patterns, kind="target", where=self.label, do=do)

    def plan(self, tables: Sequence[TableName], row_triggers: Sequence[str]) -> DatabasePlan:
        """Plan nothing: documents are read as they are."""
        plan = super().plan(tables, row_triggers)
        plan.notes.append(f"{count(self._documents.count(), 'document')} in the folder so far")
        return plan


_: type[Recording] = XdsDocuments
__: type[ReadableRecording] = Carried
