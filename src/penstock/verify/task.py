"""In a task: compares ranges of a source and a target at one position; neither side knows what the other is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.apply.apply_errors import UNIQUE_VIOLATED, ApplyError, SpeculationError
from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk, Range
from penstock.snapshot.rows import TableRows
from penstock.snapshot.task import ChunkLoader
from penstock.text import are
from penstock.verify.bring import bring
from penstock.verify.compare_rows import ComparedRange, Difference, at_target, compare_rows

MOST_KEYS = 100
"""Keys named for each range; all differences are counted."""

_LOCK_TIMEOUT_MS = 2_000
"""How long a repair may wait for another session's lock, while apply waits for the repair."""


@dataclass(frozen=True)
class TargetState:
    """What a target holds.

    Attributes:
        tables: The position that each copied table stands at: what is applied, or its copy's where that is later.
        ahead: Transactions above these positions that are applied, too.
    """

    tables: Mapping[TableName, Scn]
    ahead: Sequence[Scn]


class SourceReading(Protocol):
    """Sessions of one task at the source."""

    def begin(self, held: TargetState) -> None:
        """Take a snapshot of the source that is later than all that a target holds.

        Raises:
            RetryableError: The source cannot tell any more how it was at these positions.
        """

    def rows(self, table: TableSchema, held: Scn) -> TableRows:
        """The rows of a table as they were where a target stands: at that position, with what it has applied ahead.

        Raises:
            RetryableError: The source cannot tell how they were; a moment later it can.
        """


class ComparedSource(Protocol):
    """A source whose tables can be compared. It travels to tasks."""

    def reading(self, purpose: str, *, lock_timeout_ms: int | None) -> AbstractContextManager[SourceReading]:
        """Open sessions at the source, which wait so long for a lock; for ever without patience."""


class TargetReading(ABC):
    """Sessions of one task at the target."""

    @abstractmethod
    def held(self) -> TargetState:
        """Read what the target holds; while nothing is repaired, all that follows is read as of this moment."""

    @abstractmethod
    def rows(self, table: TableSchema, like: TableSchema) -> TableRows:
        """The rows of a table, whose values are written as the types of `like` have them."""


class Repair(TargetReading):
    """The same in a transaction beside which nothing is applied."""

    @property
    @abstractmethod
    def writer(self) -> ChunkLoader:
        """What writes in that transaction."""

    @abstractmethod
    def note_brought(self, table: TableName) -> None:
        """Note that a table without a key holds what queued transactions did to it, so that none is done twice."""


class ComparedTarget(ABC):
    """A target whose tables can be compared. It travels to tasks."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The target, named without secrets."""

    @abstractmethod
    def reading(self, purpose: str) -> AbstractContextManager[TargetReading]:
        """Open sessions that see one moment of the target."""

    @abstractmethod
    def repairing(self, *, lock_timeout_ms: int) -> AbstractContextManager[Repair]:
        """Open a transaction that keeps all that applies from beginning one; commits at the end of the block.

        It waits so long for a lock of another session.
        """


@dataclass(frozen=True)
class RangeResult:
    """How one range of a table compares."""

    chunk: Chunk
    rows: int
    differing: int
    differences: Sequence[Difference]


@dataclass(frozen=True)
class Comparer:
    """Compares ranges between any source and any target, inside a task, and brings what differs."""

    source: ComparedSource
    target: ComparedTarget

    def compare(self, ranges: Sequence[Range]) -> list[RangeResult]:
        """Compare the rows of ranges, at what the target says is applied; all of them at one position.

        Raises:
            RetryableError: The source cannot tell how it was at that position; a moment later it can.
        """
        with self.target.reading("verify") as there, self.source.reading("verify", lock_timeout_ms=None) as origin:
            held = there.held()
            origin.begin(held)
            return [self._compare(origin, there, compared, held) for compared in ranges]

    def repair(self, compared: Range) -> RangeResult:
        """Bring the rows of a range that differ, in one target transaction beside which none is applied.

        They become what they were at the source at the position that the target is at, so whatever is applied
        afterwards meets the rows it expects. A row keeps what it has in columns that only the target has.

        Returns:
            What differed.

        Raises:
            RetryableError: As `compare`.
            OperatorError: The target refuses a row.
        """
        try:
            with (
                self.source.reading("repair", lock_timeout_ms=_LOCK_TIMEOUT_MS) as origin,
                self.target.repairing(lock_timeout_ms=_LOCK_TIMEOUT_MS) as repair,
            ):
                return self._bring(origin, repair, compared)
        except (ApplyError, SpeculationError) as exc:
            if isinstance(exc, ApplyError) and exc.number == UNIQUE_VIOLATED and compared.chunk.is_bounded:
                # Rows of two ranges have exchanged a unique value: they can only go together.
                return self.repair(replace(compared, chunk=replace(compared.chunk, after=None, upto=None)))
            raise OperatorError(
                f"cannot repair rows of table {compared.target.name}: {exc.what}",
                where=self.target.label,
                do="nothing of this range was changed; have the target take what the source holds (a constraint, a"
                " trigger or a rule of its own may keep it away), and try again",
            ) from exc

    def _compare(self, origin: SourceReading, there: TargetReading, compared: Range, held: TargetState) -> RangeResult:
        at_source = _as_of(origin, compared, held)
        found = compare_rows(at_source, there.rows(at_target(compared), compared.shape), compared)
        return _result(found, compared)

    def _bring(self, origin: SourceReading, repair: Repair, compared: Range) -> RangeResult:
        held = repair.held()
        origin.begin(held)
        at_source, there = _as_of(origin, compared, held), repair.rows(at_target(compared), compared.shape)
        found = bring(repair.writer, at_source, there, compared)
        if compared.shape.primary_key is None:
            repair.note_brought(compared.target.name)
        return _result(found, compared)


def not_copied(tables: Sequence[TableName]) -> OperatorError:
    """The error for tables that cannot be compared yet."""
    names = ", ".join(map(str, tables))
    which = "it" if len(tables) == 1 else "them"
    return OperatorError(f"{names} {are(len(tables))} not copied yet", do=f"let `penstock run` copy {which} first")


def _as_of(origin: SourceReading, compared: Range, held: TargetState) -> TableRows:
    # The target knows tables by its own names.
    at = held.tables.get(compared.target.name)
    if at is None:
        raise not_copied([compared.target.name])
    return origin.rows(compared.source, at)


def _result(found: ComparedRange, compared: Range) -> RangeResult:
    chunk = replace(found.chunk, table=compared.target.name)
    return RangeResult(chunk, found.rows, found.differing, found.differences[:MOST_KEYS])
