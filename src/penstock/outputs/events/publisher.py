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
from penstock.formats.debezium.writer import Record
from penstock.outputs.events.standing import Entry, Standing


class Transaction(Protocol):
    """What is published at once.

    Attributes:
        standing: Where the pipeline stands once it is.
    """

    standing: Standing

    def send(self, records: Iterable[Record]) -> int:
        """Add records; returns how many there were."""

    def refusal(self, record: Record) -> str | None:
        """Say why a record cannot be published, if that is known before; it goes on from "an event"."""

    def stand(self, standing: Standing, *entries: Entry) -> None:
        """Have the pipeline stand somewhere else afterwards; entries are what says so."""


class Publisher(Protocol):
    """The only one that publishes for its pipeline, until another one is opened.

    Attributes:
        token: Drawn when it was opened.
        standing: Where the pipeline stands.
    """

    token: str
    standing: Standing

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Publish what is sent inside the block, all of it or nothing.

        After an error the publisher is of no use any more.

        Raises:
            RetryableError: Another publisher was opened, or the place is out of reach; what was sent may be published
                all the same: the next publisher knows.
            FencedError: Another publisher was opened.
            OperatorError: The place refuses something.
        """

    def close(self) -> None:
        """Let go of what was not sent."""


class EventLog(Protocol):
    """Where the events of a pipeline are published, and its position is kept; travels to tasks."""

    @property
    def pipeline(self) -> str:
        """The pipeline's name."""

    @property
    def label(self) -> str:
        """The place, named without secrets."""

    @property
    def where(self) -> str:
        """What keeps the position, for messages."""

    def standing(self) -> Standing:
        """Say where the pipeline stands by what was published so far; empty where there is nothing.

        Raises:
            RetryableError: The place is out of reach.
            MalformedInputError: Others have written there.
        """

    def open(self, *, is_large: bool = False) -> Publisher:
        """Become the only publisher, and read where the pipeline stands.

        Args:
            is_large: What it publishes at once may take long.
        """


def begin_run(log: EventLog, source: str) -> Publisher:
    """Begin a run: end every earlier one, and count this one.

    Raises:
        OperatorError: `setup` was not run, or what is there is of another source.
    """
    publisher = log.open()
    try:
        refuse_unmade(publisher.standing, source, log)
        with publisher.transaction() as transaction:
            standing = replace(publisher.standing, epoch=publisher.standing.epoch + 1)
            transaction.stand(standing, standing.run_entry)
    except PenstockError:
        publisher.close()
        raise
    return publisher


def open_for_run(log: EventLog, epoch: int, *, is_large: bool = False) -> Publisher:
    """Open a publisher of a run.

    Raises:
        FencedError: Another run has begun since.
    """
    # Asked before, too: a run that is over is not to end the publisher of the one that has begun since.
    _refuse_replaced(log.standing(), epoch, log)
    made = log.open(is_large=is_large)
    try:
        _refuse_replaced(made.standing, epoch, log)
    except FencedError:
        made.close()
        raise
    return made


def make_position(log: EventLog, source: str) -> None:
    """Say of which pipeline the log is, and which source it publishes, unless it says so already."""
    publisher = log.open()
    try:
        if not publisher.standing.id:
            with publisher.transaction() as transaction:
                standing = replace(publisher.standing, id=secrets.token_hex(16), source=source)
                transaction.stand(standing, standing.header_entry)
    finally:
        publisher.close()


def refuse_unmade(standing: Standing, source: str, log: EventLog) -> None:
    """Raise an `OperatorError` unless a standing is that of this source."""
    if not standing.id:
        raise OperatorError("nothing says where the pipeline stands", where=log.where, do="run `penstock setup`")
    if standing.source != source:
        raise OperatorError(
            f"the pipeline of this name publishes source {standing.source!r}, not {source!r}",
            where=log.where,
            do="give the pipeline another name, or capture.connection its former one",
        )


def _refuse_replaced(standing: Standing, epoch: int, log: EventLog) -> None:
    if standing.epoch != epoch:
        raise FencedError("another run of the pipeline publishes", where=log.where)
