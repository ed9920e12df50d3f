"""What every source owes: its transactions cut into slices, and readers that turn a slice into the change stream.

The driver asks a `Source` for slices, which hold no rows. A slice travels to a task, where the source's `Reader` yields
its changes as Arrow batches (`change.ARROW_SCHEMA`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.change import TableName
from penstock.history import ConsumerState, History, Joined
from penstock.position import Anchor, Limit, Scn
from penstock.schema import TableSchema


@dataclass(frozen=True)
class Slice:
    """A run of transactions in commit order: the same ones on every read, until they are freed.

    The arrays have one entry for each transaction. A source whose reader has to know more of them adds arrays in a
    subclass, and names them in `PER_TRANSACTION`.

    Attributes:
        after: Position before the first transaction.
        end: Position after the last one; at least its `commit_scn`.
        commit_scns: Position of each transaction: strictly increasing, with gaps.
        changes: Number of changes of each transaction.
        size_bytes: Size of each transaction's images.
        committed_at_us: When each was committed, microseconds since 1970 in UTC.
        is_large: It is one transaction that must not be held in memory.
        start: The source's last cut at or before `after`.
        cut: The cut behind its transactions, by which they got their positions.
    """

    PER_TRANSACTION: ClassVar[tuple[str, ...]] = ("commit_scns", "changes", "size_bytes", "committed_at_us")

    after: Scn
    end: Scn
    commit_scns: NDArray[np.int64]
    changes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    committed_at_us: NDArray[np.int64]
    is_large: bool = False
    start: Anchor | None = None
    cut: Anchor | None = None

    def __len__(self) -> int:
        return len(self.commit_scns)

    @classmethod
    def empty(cls, at: Scn) -> Self:
        """No transactions, at a position."""
        none: dict[str, Any] = dict.fromkeys(cls.PER_TRANSACTION, np.zeros(0, np.int64))
        return cls(after=at, end=at, **none)

    @property
    def anchor(self) -> Anchor | None:
        """The last cut at or before its end."""
        return self.cut if self.cut is not None and self.cut.scn == self.end else self.start

    @property
    def last_committed_at(self) -> datetime | None:
        """When the last of them was committed; None without transactions."""
        if len(self) == 0:
            return None
        return datetime.fromtimestamp(int(self.committed_at_us.max()) / 1_000_000, UTC)

    @property
    def total_changes(self) -> int:
        """Number of changes in all transactions together."""
        return int(self.changes.sum())

    @property
    def has_ddl(self) -> bool:
        """Whether one of its transactions altered a table; then apply takes that one alone."""
        return False

    def until_ddl(self) -> Self:
        """The transactions before the first one that altered a table; that one alone where it is the first."""
        return self

    def has_next(self, position: Scn) -> bool:
        """Whether the transaction behind a position is among them."""
        return len(self) > 0 and self.after <= position < self.commit_scns[-1]

    def take(self, after: Scn, limit: Limit, until: Scn | None) -> Self:
        """Return those behind a position, as many as the limit allows, and at most up to `until`.

        At least one, unless none lies before `until`: then only the position moves.
        """
        skip = int(np.searchsorted(self.commit_scns, after, side="right"))
        changes, size_bytes = self.changes[skip:], self.size_bytes[skip:]
        is_large = (changes > limit.large_changes) | (size_bytes > limit.large_bytes)
        count = min(
            limit.max_transactions,
            _object(changes, limit.max_changes),
            _object(size_bytes, limit.max_bytes),
            max(1, int(np.argmax(is_large))) if is_large.any() else len(is_large),
        )
        if until is None:
            part = self._cut(skip, skip + count)
            return replace(part, after=after, is_large=bool(is_large[:1].any()))
        upto = int(np.searchsorted(self.commit_scns[skip:], until, side="right"))
        part = self._cut(skip, skip + min(count, upto))
        # With all of them taken the slice reaches as far as it was asked to, though no transaction may lie there.
        end = Scn(min(self.end if count >= upto else part.end, until))
        return replace(part, after=after, end=end, is_large=bool(is_large[:upto][:1].any()))

    def split(self, parts: int) -> list[Self]:
        """Cut into at most `parts` slices of about equal numbers of changes; no transaction is cut."""
        if len(self) == 0:
            return []
        ends = np.cumsum(self.changes)
        targets = ends[-1] * np.arange(1, parts) / parts
        cuts = [0, *sorted(set(np.searchsorted(ends, targets) + 1) - {0, len(self)}), len(self)]
        return [self._cut(a, b) for a, b in pairwise(cuts) if b > a]

    def windows(self, sizes: Iterable[int], max_bytes: int) -> Iterator[Self]:
        """Cut into consecutive slices; each ends with the transaction that reaches one of the limits.

        Args:
            sizes: The number of changes for each slice; enough of them.
        """
        changes, size_bytes = np.cumsum(self.changes), np.cumsum(self.size_bytes)
        first = 0
        for max_changes in sizes:
            if first == len(self):
                return
            by_changes = np.searchsorted(changes, (changes[first - 1] if first else 0) + max_changes)
            by_bytes = np.searchsorted(size_bytes, (size_bytes[first - 1] if first else 0) + max_bytes)
            end = min(int(min(by_changes, by_bytes)) + 1, len(self))
            yield self._cut(first, end)
            first = end

    def _cut(self, a: int, b: int) -> Self:
        return replace(
            self,
            after=self.after if a == 0 else Scn(int(self.commit_scns[a - 1])),
            end=self.end if b == len(self) else Scn(int(self.commit_scns[b - 1])),
            is_large=False,
            **{name: getattr(self, name)[a:b] for name in self.PER_TRANSACTION},
        )


def _object(sizes: NDArray[np.int64], most: int) -> int:
    """How many of the first entries stay below `most` together; at least one."""
    return max(1, int(np.searchsorted(np.cumsum(sizes), most, side="right")))


@dataclass(frozen=True)
class TableVersion:
    """One version of a table that changes are captured of.

    Attributes:
        id: The source's own number of the table, which it keeps when it is renamed.
        table: The table as it was in that version.
        definition: The JSON it was read from, as it is kept in the ledger.
        root: The table that it is a partition of: its rows are changes of that table, only its truncation is its
            own. Otherwise the table itself.
        is_gone: The table was dropped; this is what it was like.
    """

    id: int
    table: TableSchema
    definition: Mapping[str, Any]
    root: TableName
    is_gone: bool = field(default=False, kw_only=True)

    @property
    def is_left_out(self) -> bool:
        """Whether the pipeline has nothing to do with it: its changes are met, and nothing is written down of it."""
        return False

    @property
    def is_partition(self) -> bool:
        """Whether its rows are captured as those of its root."""
        return self.root != self.table.name

    @property
    def number(self) -> int:
        """A number that grows from each version of a table to the next, by whatever names they go."""
        return self.table.version


def roots(versions: Iterable[TableVersion]) -> dict[TableName, TableSchema]:
    """Return the tables as they are now: neither partitions, nor by names they had before.

    What is gone is among them: changes of it may be to come.
    """
    return {name: version.table for name, version in root_versions(versions).items()}


def root_versions(versions: Iterable[TableVersion]) -> dict[TableName, TableVersion]:
    """Return the same as versions; of two tables that had a name one after the other, the later one."""
    last = {v.id: v for v in sorted(versions, key=lambda v: v.number)}
    # That one is gone may be noted when the other is there.
    ordered = sorted(last.values(), key=lambda v: (not v.is_gone, v.number))
    return {v.table.name: v for v in ordered if not v.is_partition}


def given_up(versions: Iterable[TableVersion], copied: Container[TableName]) -> set[TableName]:
    """Return the tables that were dropped, and whose copies are, too."""
    return {name for name, version in root_versions(versions).items() if version.is_gone and name not in copied}


def renamed_since(versions: Iterable[TableVersion], copied: Collection[TableName]) -> dict[int, TableName]:
    """Return the tables, by id, whose copy goes by a name that they had before: the change that says so is to come.

    A name may have gone from one table to another: the copy of a name is that of the table which has it now, unless
    that one's own copy goes by another name.
    """
    ordered = [v for v in sorted(versions, key=lambda v: v.number) if not v.is_partition]
    now = {v.id: v.table.name for v in ordered}
    had: dict[int, dict[TableName, None]] = {}
    for version in ordered:
        had.setdefault(version.id, {})[version.table.name] = None
    holder = {name: id_ for id_, name in now.items()}
    found: dict[int, TableName] = {}
    is_settled = False
    while not is_settled:
        is_settled = True
        for id_, names in had.items():
            for name in reversed(list(names)):
                is_of_other = holder.get(name) not in (None, *found) or name in found.values()
                if id_ not in found and name != now[id_] and name in copied and not is_of_other:
                    found[id_] = name
                    is_settled = False
    return found


@dataclass(frozen=True)
class StoredCopy:
    """Rows of tables as of a position, which the source holds beside its changes.

    Attributes:
        id: Drawn when the copy was made.
        cut: Its position; the mark is empty where the source has no cut there.
        tables: Whose newest copy it is, at the position that was asked for.
        dropped: Those of them that the source has dropped by that position. A target that has followed has none of
            them any more; one that leaves DDL to others has them still.
    """

    id: str
    cut: Anchor
    tables: frozenset[TableName]
    dropped: frozenset[TableName] = frozenset()


NOTHING_RECORDED = datetime(1970, 1, 1, tzinfo=UTC)
"""What `Backlog.complete_until` is before anything is recorded."""


@dataclass(frozen=True)
class Backlog:
    """What waits at the source after a position.

    Attributes:
        oldest_at: When the oldest change that waits was made.
        size_bytes: Disk that the source takes for what it keeps.
        complete_until: The source is filled by others, and when that was done last, or `NOTHING_RECORDED`; None where
            it is asked itself.
    """

    changes: int
    oldest_at: datetime | None
    size_bytes: int
    complete_until: datetime | None = None


class Reader(Protocol):
    """Reads slices of one source as change-stream batches, in whichever process it has travelled to; see `Source`."""

    def open(self) -> None:
        """Open what the first `read` would have to wait for."""

    @property
    def leaves_out(self) -> bool:
        """Whether some changes of a slice, which it counts, are of tables that this reader does not follow."""

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice; those of one transaction follow each other in order.

        Args:
            with_key: Fill the `key` column; apply does not need it.

        Raises:
            OperatorError: What the slice names is not there any more.
            MalformedInputError: What was read breaks its own format.
            PenstockError: Of either kind, if a transaction has fewer or more changes than the slice says.
        """


class Source(Protocol):
    """A source as the driver sees it; each folder of `sources` has one, in its `source.py` or `queue.py`.

    Nothing is opened before it is needed; not for two threads at once.
    """

    def open(self) -> None:
        """Open what the first calls would have to wait for."""

    def join(self, history: History) -> Joined:
        """Make sure that a process goes on with the history it has followed, and have changes kept for it.

        Raises:
            OperatorError: The source is of another history, or does not hold what follows (any more).
        """

    def hold_against(self, history: History) -> None:
        """Make sure that a process's history is that of the source; otherwise raise as `join` does."""

    def next_slice(
        self, after: Scn, limit: Limit, *, until: Scn | None = None, anchor: Anchor | None = None
    ) -> Slice | None:
        """Return the transactions that follow `after`, as many as `limit` allows; None when there are none yet.

        A slice without transactions only moves the position.

        Args:
            until: The slice ends here at the latest; the source has been as far already.
            anchor: The last cut at or before `after`, as it was known when `after` was reached.
        """

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when `next_slice`, which had nothing, may have something; after the timeout at the latest."""

    def tick(self) -> Scn:
        """Return a position that every transaction committed before the call lies at or before."""

    def tables(self) -> Sequence[TableVersion]:
        """Return every version of every table that a change may name, oldest first."""

    def count_tables(self) -> int:
        """How many `tables` would return; cheap enough to ask before each batch."""

    def free(self, upto: Scn, consumer: str) -> int:
        """Note that a consumer needs nothing at or before `upto`, and forget what no consumer needs any more.

        Returns:
            The number of rows that were deleted, or whatever else the source counts.
        """

    def seen(self, consumer: str) -> None:
        """Note that a consumer is there, though there is nothing for it."""

    def consumers(self) -> Sequence[ConsumerState]:
        """Return the consumers that changes are kept for, and what each holds back, the furthest behind first."""

    def backlog(self, after: Scn) -> Backlog:
        """Count what waits behind a position; may count again what lies before it, but behind the last cut."""

    def close(self) -> None:
        """Close what was opened; a later call opens it again."""
