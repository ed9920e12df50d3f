"""What publishes events, and with them the position that they reach: all of it at once, or nothing.

What keeps events from being lost or doubled is one rule: a publisher publishes only behind the position that it has
read *after* it became the only one of its pipeline. From then on nothing but the publisher itself can move the
position.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from penstock.errors import FencedError, OperatorError, PenstockError
from penstock.formats.debezium.writer import OutgoingRecord
from penstock.sinks.events.state import PublishedState, StateEntry


class PublishTransaction(Protocol):
    """What is published at once.

    Attributes:
        published_state: Where the pipeline stands once it is.
    """

    published_state: PublishedState

    def send(self, records: Iterable[OutgoingRecord]) -> int:
        """Add records; returns how many there were."""

    def refusal(self, record: OutgoingRecord) -> str | None:
        """Say why a record cannot be published, if that is known before; it goes on from "an event"."""

    def stand(self, published_state: PublishedState, *entries: StateEntry) -> None:
        """Have the pipeline stand somewhere else afterwards; entries are what says so."""


class Publisher(Protocol):
    """The only one that publishes for its pipeline, until another one is opened.

    Attributes:
        token: Drawn when it was opened.
        published_state: Where the pipeline stands.
    """

    token: str
    published_state: PublishedState

    def transaction(self) -> AbstractContextManager[PublishTransaction]:
        """Publish what is sent inside the block, all of it or nothing.

        After an error the publisher is of no use any more.

        Raises:
            RetryableError: Another publisher was opened, or the sink is out of reach; what was sent may be published
                all the same: the next publisher knows.
            FencedError: Another publisher was opened.
            OperatorError: The sink refuses something.
        """

    def close(self) -> None:
        """Let go of what was not sent."""


class EventDestination(Protocol):
    """Where the events of a pipeline are published, and its position is kept; travels to tasks."""

    @property
    def pipeline(self) -> str:
        """The pipeline's name."""

    @property
    def label(self) -> str:
        """The sink, named without secrets."""

    @property
    def where(self) -> str:
        """What keeps the position, for messages."""

    def published_state(self) -> PublishedState:
        """Say where the pipeline stands by what was published so far; empty where there is nothing.

        Raises:
            RetryableError: The sink is out of reach.
            MalformedInputError: Others have written there.
        """

    def open(self, *, is_large: bool = False) -> Publisher:
        """Become the only publisher, and read where the pipeline stands.

        Args:
            is_large: What it publishes at once may take long.
        """


def begin_run(log: EventDestination, source: str) -> Publisher:
    """Begin a run: end every earlier one, and count this one.

    Raises:
        OperatorError: `setup` was not run, or what is there is of another source.
    """
    publisher = log.open()
    try:
        refuse_unmade(publisher.published_state, source, log)
        with publisher.transaction() as transaction:
            published_state = replace(publisher.published_state, epoch=publisher.published_state.epoch + 1)
            transaction.stand(published_state, published_state.run_entry)
    except PenstockError:
        publisher.close()
        raise
    return publisher


def open_for_run(log: EventDestination, epoch: int, *, is_large: bool = False) -> Publisher:
    """Open a publisher of a run.

    Raises:
        FencedError: Another run has begun since.
    """
    # Asked before, too: a run that is over is not to end the publisher of the one that has begun since.
    _refuse_replaced(log.published_state(), epoch, log)
    made = log.open(is_large=is_large)
    try:
        _refuse_replaced(made.published_state, epoch, log)
    except FencedError:
        made.close()
        raise
    return made


def make_position(log: EventDestination, source: str) -> None:
    """Say of which pipeline the log is, and which source it publishes, unless it says so already."""
    publisher = log.open()
    try:
        if not publisher.published_state.id:
            with publisher.transaction() as transaction:
                published_state = replace(publisher.published_state, id=secrets.token_hex(16), source=source)
                transaction.stand(published_state, published_state.header_entry)
    finally:
        publisher.close()


def refuse_unmade(published_state: PublishedState, source: str, log: EventDestination) -> None:
    """Raise an `OperatorError` unless a published state is that of this source."""
    if not published_state.id:
        raise OperatorError("nothing says where the pipeline stands", where=log.where, do="run `penstock setup`")
    if published_state.source != source:
        raise OperatorError(
            f"the pipeline of this name publishes source {published_state.source!r}, not {source!r}",
            where=log.where,
            do="give the pipeline another name, or capture.connection its former one",
        )


def _refuse_replaced(published_state: PublishedState, epoch: int, log: EventDestination) -> None:
    if published_state.epoch != epoch:
        raise FencedError("another run of the pipeline publishes", where=log.where)
