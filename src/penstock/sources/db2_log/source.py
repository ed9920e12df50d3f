"""Db2's log as a source of a pipeline: implements `sources.recorded.Recording` over a folder of buffers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.history import HistoryError
from penstock.position import START, Scn
from penstock.sources.db2_log.buffers import Buffers
from penstock.sources.db2_log.framing import ONCE_IN_ORDER
from penstock.sources.db2_log.positions import file_of
from penstock.sources.db2_log.reading import LogReading
from penstock.sources.recorded import RecordedConnector, Recording
from penstock.storage import Storage
from penstock.stream import Slice, TableVersion

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LogSlice(Slice):
    """A slice that knows where the first record of each transaction lies."""

    PER_TRANSACTION: ClassVar[tuple[str, ...]] = (*Slice.PER_TRANSACTION, "firsts")

    firsts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class Db2Log:
    """Implements `Recording`."""

    buffers: Buffers

    @property
    def label(self) -> str:
        """The folder."""
        return self.buffers.storage.label

    @property
    def id(self) -> str:
        """What the catalogue says."""
        return self.buffers.catalog.id

    def tables(self) -> Sequence[TableVersion]:
        """Return what the catalogue says; it is read once in each process."""
        return self.buffers.catalog.versions()

    def end(self) -> Scn:
        """Return the position of the last transaction that changed a table of the catalogue."""
        for indexed in reversed(self.buffers.indexed()):
            if len(indexed.columns[0]):
                return Scn(int(indexed.columns[0][-1]))
        return START

    def digest_at(self, position: Scn) -> str | None:
        """Return a digest of the log up to a position; None where it ends before that, empty at the very beginning."""
        return "" if position <= START else self.buffers.digest_at(position)

    def proof_at(self, position: Scn) -> str:
        """Return a digest of the log up to a position."""
        return self.digest_at(position) or ""

    def hold_against(self, proof: str, position: Scn) -> None:
        """Make sure that the log up to a position holds what it held; raises a `HistoryError` otherwise."""
        if self.digest_at(position) != proof:
            number, offset = file_of(position)
            what = f"what lies before offset {offset} of file {number} was read, and holds something else now"
            raise HistoryError(what, where=self.label, do=ONCE_IN_ORDER)

    def next_slice(self, after: Scn) -> LogSlice | None:
        """Return what follows a position in the first file that has something."""
        # What follows a position was committed in the file that it lies in, or in a later one.
        for indexed in self.buffers.indexed()[max(0, file_of(after)[0] - 1) :]:
            scns = indexed.columns[0]
            if len(scns) and scns[-1] > after:
                skip = int(np.searchsorted(scns, after, side="right"))
                scns, firsts, changes, sizes, at_us = (column[skip:] for column in indexed.columns)
                return LogSlice(after, Scn(int(scns[-1])), scns, changes, sizes, at_us, firsts=firsts)
        return None

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice, from the first record of any of its transactions on."""
        assert isinstance(part, LogSlice)
        reading = LogReading(self.buffers.catalog, set(part.commit_scns.tolist()))
        for of_file in self.buffers.transactions(int(part.firsts.min()), int(part.commit_scns[-1])):
            yield from reading.read(of_file)
        left = reading.left
        if left.not_logged or left.unreplicable:
            facts = {"not_logged": left.not_logged, "unreplicable": left.unreplicable, "after": int(part.after)}
            log.warning("db2_log.columns_left_out", extra=facts)


def open_db2_log(storage: Storage) -> RecordedConnector:
    """Make a source of a folder of buffers; nothing is touched yet."""
    return RecordedConnector(Db2Log(Buffers(storage)))


_: type[Recording] = Db2Log
