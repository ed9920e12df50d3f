"""Published events as the ledger of a run: the position is published with them, so what was published is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from penstock.apply.ddl_log import LoggedDdl
from penstock.apply.error_queue import ErrorEntry
from penstock.apply.ledger import ProcessState, ProcessStatus, QueueState
from penstock.change import TableName
from penstock.errors import FencedError
from penstock.history import Consumer, History, Joined
from penstock.outputs.events.publisher import EventLog, Publisher, begin_run, open_for_run
from penstock.outputs.events.standing import Entry, Standing
from penstock.outputs.events.task import Published
from penstock.pipeline.place import PlaceLedger
from penstock.pipeline.published_queue import entry_of
from penstock.pipeline.sides import RunLock
from penstock.position import Anchor, Scn
from penstock.stream import TableVersion


class EventLedger:
    """Implements `place.PlaceLedger`.

    Attributes:
        standing: Where the pipeline stands.
        token: Of the publisher that is the only one: that of this process, or of the task that has published last.
    """

    def __init__(self, log: EventLog, label: str, lock: Callable[[], RunLock]) -> None:
        """Keep the ledger of the pipeline with its events; nothing is touched yet.

        Args:
            label: What is published to, for people.
        """
        self._log = log
        self._label = label
        self._take_lock = lock
        self._lock: RunLock | None = None
        self._publisher: Publisher | None = None
        self._told = 0
        self.standing = Standing()
        self.token = ""

    @property
    def epoch(self) -> int:
        """The epoch of the run that has acquired it."""
        return self.standing.epoch

    def acquire(self, source: str, *, lanes: int) -> ProcessState:
        """Become the one run that publishes; every earlier one is refused from now on.

        Raises:
            OperatorError: Another run is alive, or what is there is of another source.
        """
        self._lock = self._lock or self._take_lock()
        self._let_go()
        self._hold(begin_run(self._log, source))
        self._told = self.standing.last_error
        return self._state()

    def confirm(self) -> None:
        """Make sure that no other run has begun; raises FencedError otherwise."""
        if self._log.standing().epoch != self.epoch:
            raise FencedError("another run of the pipeline publishes", where=self._log.where)

    def adopt(self, found: Joined) -> ProcessState:
        """Write down which history is followed from now on, and from where."""
        last = self.standing
        if (last.origin, last.anchor, last.position) != (found.origin, found.anchor, found.position):
            standing = replace(last.moved(found.position, found.anchor), origin=found.origin)
            self.write(standing, standing.origin_entry, standing.position_entry)
        return self._state()

    def find_out(self) -> None:
        """Read where the pipeline stands after a task has failed, which may have published a part of its work.

        Raises:
            FencedError: Another run has begun.
        """
        self._let_go()
        self._hold(open_for_run(self._log, self.epoch))

    def took(self, published: Published) -> None:
        """Know what a task has published, which moved the position itself."""
        self.standing, self.token = published.standing, published.token

    def complete(self, end: Scn, consistent_at: datetime | None, anchor: Anchor | None) -> None:
        """Move the position to where a slice ends that had nothing to publish; others have moved it."""
        last = self.standing
        if last.position < end or (anchor is not None and last.anchor != anchor):
            standing = last.moved(end, anchor)
            self.write(standing, standing.position_entry)

    def write(self, standing: Standing, *entries: Entry) -> None:
        """Have the pipeline stand somewhere else, without an event.

        Raises:
            FencedError: Another run has begun.
        """
        if self._publisher is None or self._publisher.token != self.token:
            self._let_go()
            self._hold(open_for_run(self._log, self.epoch))
        publisher = self._publisher
        assert publisher is not None
        with publisher.transaction() as transaction:
            transaction.stand(standing, *entries)
        self.standing = publisher.standing

    def save_dictionary(self, versions: Iterable[TableVersion]) -> None:
        """Write nothing down: every event says what its table is like."""

    def instantiated(self) -> Mapping[TableName, Scn]:
        """Return the tables whose rows were published, and the position of each copy."""
        return self.standing.copied

    def is_copied(self, id_: int, table: TableName) -> bool:
        """Whether the rows of a table were published under the name that it has."""
        return self.standing.is_copied(id_, table)

    def note_idle(self, consistent_at: datetime) -> None:
        """Write nothing down."""

    def set_status(self, status: ProcessStatus, reason: str, error: str | None = None) -> None:
        """Write nothing down: what was published does not say how runs fared."""

    def newly_queued(self) -> Sequence[ErrorEntry]:
        """Return what was put aside since the last call; the first call begins where the run did."""
        told, self._told = self._told, self.standing.last_error
        new = [one for number, one in sorted(self.standing.errors.items()) if number > told]
        return [entry_of(self._log.pipeline, one) for one in new]

    def newly_altered(self) -> Sequence[LoggedDdl]:
        """Return nothing: what is published is of no table that would follow."""
        return []

    def queue_state(self) -> QueueState:
        """Return what the error queue holds."""
        return QueueState(failed=len(self.standing.errors))

    def close(self) -> None:
        """Give up being the one run."""
        self._let_go()
        if self._lock is not None:
            self._lock.close()
        self._lock = None

    def _hold(self, publisher: Publisher) -> None:
        self._publisher, self.standing, self.token = publisher, publisher.standing, publisher.token

    def _let_go(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self._publisher = None

    def _state(self) -> ProcessState:
        return state_of(self._log, self._label, self.standing)


def state_of(log: EventLog, label: str, standing: Standing) -> ProcessState:
    """Say where the process of a pipeline stands."""
    return ProcessState(
        name=log.pipeline,
        epoch=standing.epoch,
        status=ProcessStatus.DISABLED,
        status_at=standing.written_at,
        error=None,
        reason=None,
        low_watermark=standing.position,
        high_watermark=standing.position,
        consistent_at=None,
        transactions=standing.transactions,
        changes=standing.changes,
        errors=len(standing.errors),
        conflicts=0,
        resolved=0,
        history=History(
            consumer=consumer_of(log, label, standing),
            origin=standing.origin,
            position=standing.position,
            anchor=standing.anchor,
            newest=standing.newest_cut,
            is_new=standing.origin is None,
        ),
    )


def consumer_of(log: EventLog, label: str, standing: Standing) -> Consumer:
    """What the source knows a pipeline by; without an id where nothing was made yet."""
    return Consumer(standing.id, log.pipeline, label, f"events {log.where}")


_: type[PlaceLedger] = EventLedger
