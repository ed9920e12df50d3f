"""Published events as the ledger of a run: the position is published with them, so what was published is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from penstock.apply.error_queue import ErrorEntry
from penstock.apply.ledger import ProcessState, QueueState
from penstock.change import TableName
from penstock.errors import FencedError
from penstock.formats.debezium.writer import OutgoingRecord
from penstock.history import Consumer, History, Joined
from penstock.pipeline.connectors import RunLock
from penstock.pipeline.published_queue import entry_of
from penstock.pipeline.sink import SinkLedger, process_of
from penstock.position import Anchor, Scn
from penstock.sinks.events.publisher import EventDestination, Publisher, begin_run, open_for_run
from penstock.sinks.events.state import PublishedState, RequestedCopy, StateEntry
from penstock.sinks.events.task import Published
from penstock.stream import TableVersion

Asks: TypeAlias = tuple[Mapping[TableName, RequestedCopy], Mapping[TableName, int]]
"""The copies that are requested, and those that are cancelled."""


class EventLedger(SinkLedger):
    """What was published is done.

    Attributes:
        published_state: Where the pipeline stands.
        token: Of the publisher that is the only one: that of this process, or of the task that has published last.
    """

    def __init__(self, log: EventDestination, label: str, lock: Callable[[], RunLock]) -> None:
        """Keep the ledger of the pipeline with its events; nothing is touched yet.

        Args:
            label: What is published to, for people.
        """
        super().__init__(lock)
        self._log = log
        self._label = label
        self._publisher: Publisher | None = None
        self._told = 0
        self.published_state = PublishedState()
        self.token = ""

    @property
    def epoch(self) -> int:
        """The epoch of the run that has acquired it."""
        return self.published_state.epoch

    def acquire(self, source: str, *, lanes: int) -> ProcessState:
        """Become the one run that publishes; every earlier one is refused from now on.

        Raises:
            OperatorError: Another run is alive, or what is there is of another source.
        """
        self._lock_run()
        self._let_go()
        self._hold(begin_run(self._log, source))
        self._told = self.published_state.last_error
        return self._state()

    def confirm(self) -> None:
        """Make sure that no other run has begun; raises FencedError otherwise."""
        if self._log.published_state().epoch != self.epoch:
            raise FencedError("another run of the pipeline publishes", where=self._log.where)

    def adopt(self, found: Joined) -> ProcessState:
        """Write down which history is followed from now on, and from where."""
        last = self.published_state
        if (last.origin, last.anchor, last.position) != (found.origin, found.anchor, found.position):
            published_state = replace(last.moved(found.position, found.anchor), origin=found.origin)
            self.write(published_state, published_state.origin_entry, published_state.position_entry)
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
        self.published_state, self.token = published.published_state, published.token

    def complete(self, end: Scn, consistent_at: datetime | None, anchor: Anchor | None) -> None:
        """Move the position to where a slice ends that had nothing to publish; others have moved it."""
        last = self.published_state
        if last.position < end or (anchor is not None and last.anchor != anchor):
            published_state = last.moved(end, anchor)
            self.write(published_state, published_state.position_entry)

    def write(
        self, published_state: PublishedState, *entries: StateEntry, records: Sequence[OutgoingRecord] = ()
    ) -> None:
        """Have the pipeline stand somewhere else, with the records that say so to receivers, if there are any.

        Raises:
            FencedError: Another run has begun.
        """
        if self._publisher is None or self._publisher.token != self.token:
            self._let_go()
            self._hold(open_for_run(self._log, self.epoch))
        publisher = self._publisher
        assert publisher is not None
        with publisher.transaction() as transaction:
            if records:
                published_state = published_state.with_records(transaction.send(records))
                entries = (*entries, published_state.position_entry)
            transaction.stand(published_state, *entries)
        self.published_state = publisher.published_state

    def save_dictionary(self, versions: Iterable[TableVersion]) -> None:
        """Write nothing down: every event says what its table is like."""

    def instantiated(self) -> Mapping[TableName, Scn]:
        """Return the tables whose rows were published, and the position of each copy."""
        return self.published_state.copied

    def is_copied(self, id_: int, table: TableName) -> bool:
        """Whether the rows of a table were published under the name that it has."""
        return self.published_state.is_copied(id_, table)

    def cancelled(self) -> Mapping[TableName, int]:
        """Return the tables that are not published, since their copy was cancelled; see `SinkLedger`."""
        return self.published_state.withheld

    def asks(self, *, anew: bool = False) -> Asks:
        """Return what users have asked for, as far as this run knows it; `anew` reads where the pipeline stands.

        What a task publishes behind a request that it has met is known here, too.
        """
        state = self._log.published_state() if anew else self.published_state
        return state.requested, state.cancelled

    def newly_queued(self) -> Sequence[ErrorEntry]:
        """Return what was put aside since the last call; the first call begins where the run did."""
        told, self._told = self._told, self.published_state.last_error
        new = [one for number, one in sorted(self.published_state.errors.items()) if number > told]
        return [entry_of(self._log.pipeline, one) for one in new]

    def queue_state(self) -> QueueState:
        """Return what the error queue holds."""
        return QueueState(failed=len(self.published_state.errors))

    def close(self) -> None:
        """Give up being the one run."""
        self._let_go()
        super().close()

    def _hold(self, publisher: Publisher) -> None:
        self._publisher, self.published_state, self.token = publisher, publisher.published_state, publisher.token

    def _let_go(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self._publisher = None

    def _state(self) -> ProcessState:
        return state_of(self._log, self._label, self.published_state)


def state_of(log: EventDestination, label: str, published_state: PublishedState) -> ProcessState:
    """Say where the process of a pipeline stands."""
    history = History(
        consumer=consumer_of(log, label, published_state),
        origin=published_state.origin,
        position=published_state.position,
        anchor=published_state.anchor,
        newest=published_state.newest_cut,
        is_new=published_state.origin is None,
    )
    return process_of(
        history,
        published_state.epoch,
        at=published_state.written_at,
        transactions=published_state.transactions,
        changes=published_state.changes,
        errors=len(published_state.errors),
        on_hold=sum(one.on_hold is not None for one in published_state.errors.values()),
    )


def consumer_of(log: EventDestination, label: str, published_state: PublishedState) -> Consumer:
    """What the source knows a pipeline by; without an id where nothing was made yet."""
    return Consumer(published_state.id, log.pipeline, label, f"events {log.where}")
