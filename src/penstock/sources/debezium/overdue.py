"""What becomes of transactions whose events, or whose END, do not come."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from penstock.errors import OperatorError
from penstock.events import Event, tell
from penstock.sources.debezium.index import Index
from penstock.sources.debezium.log import LogLayout

_MOST_LEFT_OUT = 100
"""So many of the transactions that were left out are remembered."""


class Overdue:
    """Looks for them, and does what the pipeline file says; not for two threads at once."""

    def __init__(self, layout: LogLayout, index: Index, left_out: list[str], *, where: str) -> None:
        """Look in an index.

        Args:
            left_out: Gets the names of transactions that are left out.
        """
        self._layout = layout
        self._index = index
        self._left_out = left_out
        self._where = where
        # Transactions that were said to be waited for.
        self._told: set[str] = set()
        # When topics were listed last, and up to where ENDs lay then; and as of when all ENDs were read.
        self._listed_at = 0.0
        self._listed: Mapping[int, int] = {}
        self._ends_read_at = 0.0
        self._unended_since = time.monotonic()

    def begin(self) -> None:
        """Events say that they have ENDs: wait for them from now on."""
        self._unended_since = time.monotonic()

    def note_listed(self, at: float, ends: Mapping[int, int]) -> None:
        """Note when topics were listed, and where partitions with ENDs ended then."""
        self._listed_at, self._listed = at, ends

    def look_for_ends(self, read: Mapping[int, int]) -> None:
        """Look for a transaction whose END should have come: all that there was is read since its last event.

        Raises:
            OperatorError: There is one, and the run is to stop for it.
        """
        if not self._listed or any(read[number] < end for number, end in self._listed.items()):
            return
        if self._ends_read_at == self._listed_at:
            return
        self._ends_read_at = self._listed_at
        group = self._index.stalled(self._ends_read_at - self._layout.incomplete_after_s)
        if not group:
            return
        what = f"transaction {group} has begun, and its END has not come for {self._layout.incomplete_after_s:g} s"
        match self._layout.incomplete:
            case "put_aside":
                self._index.forget(group)
                self._warn(f"{what}; the transaction was left out")
            case "stop":
                raise OperatorError(
                    what,
                    where=self._where,
                    do="see whether the connector runs, and whether retention has deleted the END; the next run waits"
                    " for it again; capture.debezium.incomplete: put_aside leaves such a transaction out",
                )
            case _:
                self._say_once(group, f"{what}; it is waited for")

    def look_for_events(self, now: float) -> None:
        """Look whether the transaction that is next lacks events for too long.

        Raises:
            OperatorError: It does, and the run is to stop for it.
        """
        waiting = self._index.waiting
        if waiting is None or now - waiting.since < self._layout.incomplete_after_s:
            return
        what = f"events of {waiting} have not come for {self._layout.incomplete_after_s:g} s"
        match self._layout.incomplete:
            case "put_aside":
                self._index.put_aside()
                self._left_out.append(waiting.group)
                del self._left_out[:-_MOST_LEFT_OUT]
                self._warn(f"{what}; the transaction was left out")
            case "stop":
                raise OperatorError(
                    what,
                    where=self._where,
                    do="see whether a transform of the connector drops events that it has counted, or retention has"
                    " deleted some; capture.debezium.incomplete: put_aside leaves such a transaction out",
                )
            case _:
                self._say_once(waiting.group, f"{what}; they are waited for")

    def refuse_without_topic(self, now: float) -> None:
        """Raise an `OperatorError` where no topic of ENDs has come to be for too long."""
        if now - self._unended_since > self._layout.incomplete_after_s:
            raise OperatorError(
                "events say which transaction they are of, and nothing says when one has ended: the transaction"
                f" topic {self._layout.transactions} is not there, or may not be read",
                where=self._where,
                do="correct capture.debezium.transaction_topic, or allow this user to read it",
            )

    def _say_once(self, group: str, text: str) -> None:
        if group not in self._told:
            self._told.add(group)
            self._warn(text)

    def _warn(self, text: str) -> None:
        tell(Event.NOTE, f"{text}: {self._where}", level=logging.WARNING)
