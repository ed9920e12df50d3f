"""Where a pipeline publishes to, as the pipeline sees it: what keeps the published position, and what publishes.

An archive of change files and a Kafka cluster implement it; wiring picks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from penstock.apply.ddl_log import LoggedDdl
from penstock.apply.error_queue import ErrorEntry
from penstock.apply.ledger import ProcessState, ProcessStatus, QueueState
from penstock.apply.listener import CopyListener
from penstock.apply.process import Feed, Ledger
from penstock.apply.table_counts import TableCounts
from penstock.change import TableName
from penstock.database import SetupStep
from penstock.errors import PenstockError, TableError
from penstock.history import Consumer, History, HistoryWording
from penstock.pipeline.connectors import RunLock
from penstock.pipeline.left_out import LeftOut
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk
from penstock.snapshot.instantiate import CopyOrigin
from penstock.snapshot.task import SourceAccess
from penstock.spark.starting import Spark
from penstock.stream import Source, TableVersion

if TYPE_CHECKING:
    # It needs what an extra brings.
    from penstock.pipeline.published_copies import PublishedCopies
    from penstock.pipeline.published_queue import PublishedQueue


class Copies(Protocol):
    """Which tables' rows were published."""

    @property
    def copied(self) -> Mapping[TableName, Scn]:
        """The tables whose copy is whole, and its position."""

    def is_copied(self, id_: int, table: TableName) -> bool:
        """Whether the rows of a table were published under the name that it has, and no new copy is asked for.

        They were not where another table had the name since, or the table another name.
        """


class SinkLedger(Ledger):
    """Keeps the published position, for the one run that has acquired it; nothing says how runs fared."""

    def __init__(self, lock: Callable[[], RunLock]) -> None:
        """Be nobody's yet.

        Args:
            lock: Takes the lock of the pipeline's runs; raises an `OperatorError` while another run holds it.
        """
        self._take_lock = lock
        self._lock: RunLock | None = None

    def save_dictionary(self, versions: Iterable[TableVersion]) -> None:
        """Keep table versions."""
        raise NotImplementedError

    def instantiated(self) -> Mapping[TableName, Scn]:
        """Return the tables whose copy is complete, and the position each was copied at."""
        raise NotImplementedError

    def is_copied(self, id_: int, table: TableName) -> bool:
        """See `Copies`."""
        raise NotImplementedError

    def cancelled(self) -> Mapping[TableName, int]:
        """Return the tables whose copy was cancelled, and the source's own number of each.

        Nothing of them is published until a copy is requested. None where a subclass does not say otherwise.
        """
        return {}

    def note_idle(self, consistent_at: datetime) -> None:
        """Write nothing down."""

    def set_status(self, status: ProcessStatus, reason: str, error: str | None = None) -> None:
        """Write nothing down."""

    def newly_queued(self) -> Sequence[ErrorEntry]:
        """Return nothing: every transaction can be published, where a subclass does not say otherwise."""
        return ()

    def newly_altered(self) -> Sequence[LoggedDdl]:
        """Return nothing: what is published is of no table that would follow."""
        return ()

    def queue_state(self) -> QueueState:
        """Return that nothing is queued, where a subclass does not say otherwise."""
        return QueueState()

    def close(self) -> None:
        """Give up being the one run."""
        if self._lock is not None:
            self._lock.close()
        self._lock = None

    def count(self, tables: TableCounts) -> None:
        """Keep no counters: what is published says of which table it is, and its run counts."""

    def _lock_run(self) -> None:
        """Become the one run."""
        self._lock = self._lock or self._take_lock()


def process_of(
    history: History, epoch: int, *, at: datetime, transactions: int, changes: int, errors: int = 0, on_hold: int = 0
) -> ProcessState:
    """Say where the process of a pipeline stands that has published up to the position of its history."""
    return ProcessState(
        name=history.consumer.name,
        epoch=epoch,
        status=ProcessStatus.DISABLED,
        status_at=at,
        error=None,
        reason=None,
        low_watermark=history.position,
        high_watermark=history.position,
        consistent_at=None,
        transactions=transactions,
        changes=changes,
        errors=errors,
        on_hold=on_hold,
        conflicts=0,
        resolved=0,
        history=history,
    )


@dataclass(frozen=True)
class FeedSettings:
    """How a run follows its source; see `pipeline.feed.SourceFeed` for what is not said here.

    Attributes:
        source: Its name.
        access: How tasks reach it; `open_source` is how this process does.
        take_up_asked: Requests the copies that the source asks for.
        uncopied: The tables, of these versions, whose rows were not published yet.
        until_caught_up: The run ends by itself, so nothing waits for more.
        left_out: Tables whose changes are passed over.
    """

    source: str
    access: SourceAccess
    open_source: Callable[[], Source]
    follow_source: Callable[[], None]
    take_up_asked: Callable[[], None]
    is_meant: Callable[[TableName], bool]
    uncopied: Callable[[Sequence[TableVersion]], Sequence[TableName]]
    until_caught_up: bool
    left_out: LeftOut


@dataclass(frozen=True)
class Copying:
    """A first copy that is to be published.

    Attributes:
        source: The name of the source.
        versions: Every version of every table that the source has.
        tables: Those whose rows were not published yet, as they are at the source and by the version captured there.
        ids: The source's own number of each.
        origin: Where their rows are read from.
        confirm: Raises where tables are not any more what `tables` says.
        leave_out: Called with what is in the way of a table; the others are copied.
    """

    source: str
    access: SourceAccess
    versions: Sequence[TableVersion]
    tables: Mapping[TableName, TableSchema]
    ids: Mapping[TableName, int]
    origin: CopyOrigin
    confirm: Callable[[], object]
    leave_out: Callable[[TableError], None]


def cut_apart(copying: Copying, tables: Collection[TableName]) -> list[Chunk]:
    """Cut tables into chunks; those that something is in the way of are left out."""
    left = set(tables)
    while True:
        try:
            return copying.origin.cut_into_chunks(sorted(left))
        except TableError as exc:
            copying.leave_out(exc)
            left.remove(TableName(*exc.table))


class Sink(Protocol):
    """Where a pipeline publishes to."""

    @property
    def label(self) -> str:
        """The sink, named without secrets."""

    @property
    def words(self) -> HistoryWording:
        """How messages speak of what is there."""

    def is_made(self) -> bool:
        """Whether `make` was called."""

    def faults(self, source: str, tables: Sequence[TableName]) -> list[PenstockError]:
        """What keeps tables of a source from being published here, whatever the source holds.

        Raises:
            RetryableError: The sink is out of reach.
        """

    def steps(self, tables: Sequence[TableName]) -> Sequence[SetupStep]:
        """What `make` would do."""

    def make(self, source: str, tables: Sequence[TableName]) -> None:
        """Make the sink ready; does only what is missing."""

    def process(self) -> ProcessState | None:
        """Return where the pipeline stands; None where it was never run."""

    def copies(self) -> Copies:
        """Return which tables' rows were published; only of a sink that is made."""

    def consumer(self) -> Consumer:
        """What the source knows the pipeline by; without an id where the sink is not made."""

    def queue(self) -> PublishedQueue | None:
        """Return what could not be published; None where every value can be."""

    def requests(self) -> PublishedCopies | None:
        """Return the copies that can be asked for; None where a table is copied once."""

    def ledger(self, lock: Callable[[], RunLock]) -> SinkLedger:
        """Open the ledger of a run.

        Args:
            lock: Takes the lock of the pipeline's runs; raises an `OperatorError` while another run holds it.
        """

    def feed(self, spark: Spark, ledger: SinkLedger, following: FeedSettings) -> Feed:
        """What hands the source's changes to tasks that publish them; `ledger` is one of this sink."""

    def copy(
        self,
        spark: Spark,
        ledger: SinkLedger,
        copying: Copying,
        stop: threading.Event,
        listener: CopyListener,
    ) -> None:
        """Publish the rows of tables, or go on with it; returns early when told to stop."""
