"""Tells people when a run needs them; an observer of the run, whose own thread does the sending."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from penstock.alerts.bursts import Bursts
from penstock.alerts.message import Kind, Message
from penstock.alerts.receivers import NotDeliveredError, Receiver
from penstock.apply.error_queue import ErrorEntry
from penstock.apply.listener import RunObserver
from penstock.apply.progress import Progress
from penstock.errors import PenstockError, RetryableError
from penstock.events import Event, SourceFacts, tell
from penstock.text import count, printable

_MOST_WAITING = 100
"""More messages are not kept for a receiver that is down; the oldest go first."""

_PAUSES_S = (1.0, 5.0, 15.0)
"""How long to wait before each further attempt to hand over a message."""

_LOST_FOR_S = 60.0
"""A server that restarts is back sooner, and nobody need know."""

_TOLD_TO_STOP = "the run was stopped"


class Alerts(RunObserver):
    """Gathers what a person is to know, and hands it to a receiver. Nothing here waits, but for the end of a run."""

    def __init__(
        self,
        pipeline: str,
        receiver: Receiver,
        *,
        every_s: float,
        end_s: float,
        was_down: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Tell `receiver` of a run of `pipeline`.

        Args:
            every_s: See `Bursts`.
            end_s: How long the end of a run may wait for its last message.
            was_down: Whether the last run has ended in a way that people were told of; asked as the run begins.
        """
        self._pipeline = pipeline
        self._receiver = receiver
        self._end_s = end_s
        self._was_down = was_down
        self._clock = clock
        self._bursts = Bursts(pipeline, every_s)
        self._changed = threading.Condition()
        self._waiting: list[Message] = []
        self._is_ending = self._has_warned = False
        self._lost_at: float | None = None
        self._is_lost = False
        self._thread: threading.Thread | None = None

    def began(self) -> None:
        """Begin to send."""
        if self._was_down():
            self._bursts.assume(Kind.RUN)
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
        self._thread.start()

    def following(self) -> None:
        """The run is at work: whatever ended the last one is over."""
        self._clear(Kind.RUN, "the run is at work again")
        self._is_back()

    def retrying(self, error: RetryableError, left_s: float | None) -> None:
        """A server is out of reach, perhaps still."""
        now = self._clock()
        if self._lost_at is None:
            self._lost_at = now
        elif now - self._lost_at >= _LOST_FOR_S and not self._is_lost:
            self._is_lost = True
            self._add(
                Kind.SERVER_LOST, f"out of reach for a minute: {error}; the run tries again", {"where": error.where}
            )

    def queued(self, entry: ErrorEntry) -> None:
        """A transaction went to the error queue."""
        where = f" at {entry.op} of {entry.table}" if entry.table else ""
        number = f"error {entry.error_number}, " if entry.error_number else ""
        text = f"transaction {entry.id} went to the error queue{where}: {number}{entry.error_message}"
        self._add(
            Kind.ERROR_QUEUE,
            f"{text}. `penstock errors list` shows all",
            {
                "id": entry.id,
                "txn_id": entry.txn_id,
                "table": str(entry.table) if entry.table else None,
                "op": entry.op,
                "error_number": entry.error_number,
                "error_code": entry.error_code,
            },
        )

    def progressed(self, progress: Progress) -> None:
        """A batch is applied."""
        self._is_back()
        if not progress.in_queue:
            self._clear(Kind.ERROR_QUEUE, "the error queue is empty again")

    def waiting(self, progress: Progress) -> None:
        """Nothing waits; the error queue has just been counted."""
        self.progressed(progress)

    def warned(self, text: str, event: Event = Event.NOTE, facts: SourceFacts | None = None) -> None:
        """The log at the source is held for too long, or is so no more, or was given up."""
        facts = facts or {}
        if event is Event.LOG_GIVEN_UP:
            self._add(Kind.LOG_GIVEN_UP, text, facts, topic=str(facts.get("consumer")))
        elif event is Event.LOG_HELD and "over" in facts:
            self._clear(Kind.LOG_HELD, text, topic=str(facts["over"]))
        elif event is Event.LOG_HELD and "key" in facts:
            self._add(Kind.LOG_HELD, text, facts, topic=str(facts["key"]))

    def finished(self, progress: Progress, *, is_stopped: bool) -> None:
        """The run has ended as it should; one that was to end by itself is no news."""
        if is_stopped:
            left = f"; the error queue holds {count(progress.in_queue, 'transaction')}" if progress.in_queue else ""
            why = _TOLD_TO_STOP if progress.ended_by is None else f"the run stopped, for {progress.ended_by}"
            self._add(Kind.RUN, f"{why}{left}", {"is_error": False})
        self._end()

    def failed(self, error: PenstockError) -> None:
        """An error has ended the run."""
        facts = {"is_error": True, "error": type(error).__name__, "exit_code": error.exit_code}
        self._add(Kind.RUN, f"the run failed: {error}", facts)
        self._end()

    def _is_back(self) -> None:
        if self._is_lost:
            self._clear(Kind.SERVER_LOST, "all servers answer again")
        self._lost_at, self._is_lost = None, False

    def _add(self, kind: Kind, text: str, facts: Mapping[str, object], *, topic: str = "") -> None:
        with self._changed:
            self._bursts.add(kind, printable(text), facts, now=self._clock(), topic=topic)
            self._changed.notify_all()

    def _clear(self, kind: Kind, text: str, *, topic: str = "") -> None:
        with self._changed:
            self._bursts.clear(kind, printable(text), now=self._clock(), topic=topic)
            self._changed.notify_all()

    def _end(self) -> None:
        """Let the last messages leave, for a while; a receiver that is down keeps no run alive."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(self._end_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._take_due() and not self._is_ending:
                    due_at = self._bursts.next_due()
                    self._changed.wait(None if due_at is None else max(0.0, due_at - self._clock()))
                    continue
                message = self._waiting.pop(0) if self._waiting else None
            if message is None:
                return
            self._hand_over(message)

    def _take_due(self) -> bool:
        """Move what is due to the messages that wait; whether there are any."""
        self._waiting += self._bursts.due(self._clock(), is_last=self._is_ending)
        del self._waiting[:-_MOST_WAITING]
        return bool(self._waiting)

    def _hand_over(self, message: Message) -> None:
        reason = ""
        for pause_s in (0.0, *_PAUSES_S):
            with self._changed:
                if pause_s and self._changed.wait_for(lambda: self._is_ending, pause_s) and self._has_warned:
                    # The run ends, and this receiver has been down before.
                    break
            try:
                self._receiver.send(message)
            except NotDeliveredError as exc:
                reason = str(exc)
                continue
            self._has_warned = False
            return
        if not self._has_warned:
            self._has_warned = True
            text = f"on_error: the {self._receiver.label} {reason}; a message about this run was not delivered"
            tell(Event.NOTE, text, {"kind": message.kind}, level=logging.WARNING)
