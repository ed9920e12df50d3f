"""A pipeline that publishes what an event log says as documents: it has no first copy, and needs no Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import NoReturn, Protocol

from penstock.apply.listener import RunListener
from penstock.apply.progress import Progress
from penstock.apply.retry_policy import RetryPolicy
from penstock.config import PipelineConfig
from penstock.config.limits import retry_limit
from penstock.database import DatabasePlan, SetupStep
from penstock.errors import OperatorError, RetryableError
from penstock.history import Consumer, LogHold
from penstock.pipeline.capturing import Capturing
from penstock.pipeline.connectors import Installable, RunLock
from penstock.pipeline.locks import Holders
from penstock.pipeline.plan import Plan
from penstock.pipeline.publication import Publication
from penstock.pipeline.status import PipelineState, Status, not_set_up
from penstock.pipeline.steps import carry_out, nothing_to_set_up
from penstock.position import START, Scn
from penstock.sources.event_log.channel import Channel
from penstock.spark.starting import Spark

_LOCK_TIMEOUT_S = 5.0


class DocumentSink(Protocol):
    """Where documents go."""

    @property
    def label(self) -> str:
        """The sink, named without secrets."""

    @property
    def shown_by(self) -> str:
        """What shows what was published."""

    def refuse_unfit(self) -> None:
        """Make sure that documents can be written; raises an `OperatorError` otherwise."""

    def hold_against(self, position: Scn) -> None:
        """Make sure that nothing lies there behind the journal's position; raises an `OperatorError` otherwise."""

    def steps(self) -> Sequence[SetupStep]:
        """What `make` would do."""

    def make(self) -> None:
        """Make what documents need, as far as it is not there."""


class EventLogPublication(Publication):
    """One pipeline file that publishes an event log put to work."""

    def __init__(self, config: PipelineConfig, source: Installable, documents: DocumentSink, channel: Channel) -> None:
        """Publish from a source to a sink; neither is touched yet."""
        assert config.publish is not None
        Capturing.__init__(self, config, source, Spark(_no_spark, _no_spark))
        self._log = source
        self._publish = config.publish
        self._documents = documents
        self._channel = channel

    @property
    def places(self) -> Mapping[str, str]:
        """The event log and where its documents go."""
        return {"source": self._source.label, "published to": self._documents.label}

    @property
    def shown_by(self) -> str:
        """What shows what was published."""
        return self._documents.shown_by

    def plan(self, *, adopt: bool = False) -> Plan:
        """Work out what `setup` would do. Changes nothing."""
        if adopt:
            raise self._refused("there are no target tables that could be adopted")
        tables = self._log.match(self.config.capture.tables)
        target = DatabasePlan(self._documents.label)
        try:
            self._documents.refuse_unfit()
            target.steps += self._documents.steps()
        except OperatorError as exc:
            target.faults.append(exc)
        return Plan([str(table) for table in tables], self._log.plan(tables, ()), target)

    def setup(self, *, adopt: bool = False) -> Plan:
        """Make the journal, and the log where it is to be made. Doing it again does what is still missing.

        Raises:
            OperatorError: Something is in the way; the message names everything at once.
        """
        plan = self.plan(adopt=adopt)
        plan.refuse_impossible()
        self._documents.make()
        self._take(plan, printer="plan")
        return plan

    def status(self, log_hold: Callable[[], LogHold] | None = None) -> Status:
        """Say where the pipeline stands."""
        found = replace(not_set_up(self.config.name), publishes_to=self._documents.label)
        if not self._log.has_capture():
            return found
        with closing(self._log.open_source()) as source:
            waiting = source.backlog(START)
        position = self._channel.position()
        now = datetime.now(UTC)
        consistent_at = waiting.oldest_at if waiting.changes else now
        return replace(
            found,
            state=PipelineState.RUNNING
            if self._is_running()
            else PipelineState.STOPPED
            if position
            else PipelineState.SET_UP,
            consistent_at=consistent_at,
            lag_s=None if consistent_at is None else max(0.0, (now - consistent_at).total_seconds()),
            backlog_changes=waiting.changes,
            transactions=position,
            changes=position,
            low_watermark=position,
            high_watermark=position,
        )

    def removal(self) -> Plan:
        """Work out what `teardown` would remove. Changes nothing."""
        return Plan([], self._log.removal(Consumer("", self.config.name)), DatabasePlan(self._documents.label))

    def teardown(self, *, lose: bool = False) -> Plan:
        """Remove the journal; the log and what was published stay, so nothing is lost.

        Raises:
            OperatorError: The pipeline is running.
        """
        plan = self.removal()
        with closing(self._lock_run()):
            self._take(plan, printer="teardown")
        return plan

    def _run(
        self, stop: threading.Event, listener: RunListener, *, until_caught_up: bool, until: str | None
    ) -> Progress:
        if until is not None:
            raise self._refused("rows of an event log have no positions before they are polled")
        retry_policy = RetryPolicy(retry_limit(self._publish.retry_s), stop, listener)
        retry_policy.insist(lambda: self._check_capture(listener))
        retry_policy.insist(self._documents.refuse_unfit)
        progress = Progress(START)
        left: int | None = None
        with closing(self._lock_run()), closing(self._channel):
            retry_policy.insist(self._channel.open)
            # Before the first poll, which gives out the positions that follow.
            retry_policy.insist(lambda: self._documents.hold_against(self._channel.position()))
            if until_caught_up:
                self._channel.at_once()
            listener.following()
            while not stop.is_set():
                if self._channel.left_s:
                    stop.wait(self._channel.left_s)
                    continue
                try:
                    rows, events, progress.position = self._channel.cycle()
                except RetryableError as exc:
                    self._channel.close()
                    retry_policy.wait(exc)
                    continue
                retry_policy.restore()
                progress.transactions += events
                progress.changes += events
                if rows:
                    listener.progressed(progress)
                else:
                    listener.waiting(progress)
                if until_caught_up:
                    # What is left behind the first cycle, which may have delivered what an earlier run had polled.
                    left = self._due() if left is None else left - rows
                    if left <= 0 or not rows:
                        break
        return progress

    def _due(self) -> int:
        with closing(self._log.open_source()) as source:
            return source.backlog(START).changes

    def _take(self, plan: Plan, *, printer: str) -> None:
        with closing(Holders(self._lock_watches())) as holders:
            # What documents need is made already.
            at_source = Plan(plan.tables, plan.source, DatabasePlan(self._documents.label))
            carry_out(at_source, nothing_to_set_up(), self._log.setup(printer=printer), holders)

    def _lock_run(self) -> RunLock:
        lock = self._log.lock_run(self._documents.label, wait_s=_LOCK_TIMEOUT_S)
        if lock is None:
            raise OperatorError(
                "another run reads this event log already", where=self._log.label, do="stop that `penstock run` first"
            )
        return lock

    def _is_running(self) -> bool:
        lock = self._log.lock_run(self._documents.label, wait_s=0)
        if lock is not None:
            lock.close()
        return lock is None

    def _take_up_asked(self) -> None:
        """Do nothing: no table is copied."""

    def _requests(self) -> NoReturn:
        raise self._refused("a document is an event, and no table is copied")

    def _refused(self, why: str, *, do: str = "") -> OperatorError:
        return OperatorError(f"pipeline {self.config.name!r} publishes: {why}", where=self._documents.label, do=do)

    def _without_target(self, lacks: str, *, do: str = "") -> OperatorError:
        what = f"pipeline {self.config.name!r} publishes, and has {lacks}"
        return OperatorError(what, where=self._documents.label, do=do or self.shown_by)


def _no_spark() -> NoReturn:
    raise AssertionError("documents are written without Spark")
