"""The trigger queue as a source: slices on the driver, change-stream batches in tasks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import pyarrow as pa

from penstock.change import MESSAGES, NO_VERSION, TableName
from penstock.history import Consumer
from penstock.position import Anchor, Limit, Scn
from penstock.sources.trigger_queue.decode import CapturedTable, LogDecoder
from penstock.sources.trigger_queue.position import QueueSlice
from penstock.stream import Slice, Source, TableVersion

_NO_TABLE = 0
"""What the log names as the relation of a message."""


class ChangeLog(Source):
    """A change log in a source database. PostgreSQL's is `PostgresChangeLog`."""

    @abstractmethod
    def next_slice(
        self, after: Scn, limit: Limit, *, until: Scn | None = None, anchor: Anchor | None = None
    ) -> QueueSlice | None:
        """See `Source.next_slice`; with `until` the log is only read up to that position, and not cut."""

    @abstractmethod
    def keep_for(self, consumer: Consumer, position: Scn) -> None:
        """Have the log kept for a consumer from a position on."""

    @abstractmethod
    def earliest(self) -> Anchor:
        """Return the earliest position that can still be read from."""

    @abstractmethod
    def anchor_of(self, position: Scn) -> Anchor:
        """Return the last cut at or before a position."""

    @abstractmethod
    def read(self, part: QueueSlice) -> Iterator[pa.RecordBatch]:
        """Yield the log rows of a slice (`decode.LOG_SCHEMA`), with rows of other transactions in between."""


OpenLog: TypeAlias = Callable[[], ChangeLog]
"""Returns this worker's log, opened when first asked for and kept for later tasks; small enough to travel with them."""


@dataclass(frozen=True)
class QueueReader:
    """Implements `stream.Reader`.

    Attributes:
        open_log: Opens the log that is read.
        tables: Every captured table version, by (relid, version).
        left_out: Those of tables that the reader is not about.
    """

    source: str
    open_log: OpenLog
    tables: Mapping[tuple[int, int], CapturedTable]
    left_out: Collection[tuple[int, int]] = frozenset()

    @classmethod
    def of(
        cls,
        source: str,
        open_log: OpenLog,
        versions: Sequence[TableVersion],
        *,
        follows: Collection[TableName] | None = None,
    ) -> Self:
        """Read as `source`, with these table versions; only what is of tables that it `follows`, if that is given."""
        tables = {
            (v.id, v.table.version): CapturedTable(
                v.table.name, v.table.primary_key.columns if v.table.primary_key else ()
            )
            for v in versions
        }
        in_order = sorted(versions, key=lambda v: v.table.version)
        # A gap names its table, and no version of it.
        for v in in_order:
            tables[v.id, NO_VERSION] = CapturedTable(v.table.name, ())
        tables[_NO_TABLE, NO_VERSION] = CapturedTable(MESSAGES, ())
        # A table may have had another name in between. What was done to it then is not left out: no table of the target
        # has that name, and it is told so.
        last = {v.id: v for v in in_order}
        left_out = frozenset(
            (v.id, version)
            for v in versions
            if follows is not None
            and not any(name in follows for of in (v, last[v.id]) for name in (of.table.name, of.root))
            for version in (v.table.version, NO_VERSION)
        )
        return cls(source, open_log, tables, left_out)

    def open(self) -> None:
        """Open this worker's sessions with the log."""
        self.open_log().open()

    @property
    def leaves_out(self) -> bool:
        """Whether some captured tables are not this reader's."""
        return bool(self.left_out)

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice of the log; see `stream.Reader.read`."""
        assert isinstance(part, QueueSlice)
        decoder = LogDecoder(self.source, part, self.tables, self.left_out)
        return decoder.decode(self.open_log().read(part), with_key=with_key)
