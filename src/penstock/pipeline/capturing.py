"""What every pipeline does at its source, whether it applies or publishes: follow it, and list its consumers.

Its method `run` has `running.Run` carry out a run, and log and write down why it ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from typing import TypeAlias

from penstock import html
from penstock.alerts.alerts import Alerts
from penstock.alerts.receivers import receiver_of
from penstock.apply.ledger import ProcessState
from penstock.apply.listener import RunListener, RunObserver
from penstock.apply.progress import Progress
from penstock.change import TableName
from penstock.change_table import RecordedChanges
from penstock.config import PipelineConfig
from penstock.database import CaptureBehind, DatabasePlan, LockWait, Uncaptured
from penstock.dialects.sessions import LockWatch
from penstock.errors import ConfigError, OperatorError, PenstockError
from penstock.events import Event
from penstock.history import Consumer, ConsumerState, History, HistoryError, LogHold
from penstock.patterns import TablePattern
from penstock.pipeline.background import BackgroundRun
from penstock.pipeline.connectors import Installable, SourceConnector
from penstock.pipeline.left_out import LeftOut
from penstock.pipeline.locks import WorkWatch, told_of_locks
from penstock.pipeline.log_watch import OPEN_FOR, LogWatch, over_limit
from penstock.pipeline.observers import Observed
from penstock.pipeline.plan import Plan
from penstock.pipeline.report import Report
from penstock.pipeline.running import Run
from penstock.pipeline.samples import Plot, StatusSamples
from penstock.pipeline.status import Status
from penstock.pipeline.transformed import untransformed
from penstock.position import Limit
from penstock.rules.ruleset import RuleSet
from penstock.schema import TableSchema
from penstock.spark.starting import Spark
from penstock.stream import Source, TableVersion, root_versions, roots
from penstock.text import are, count, were

ReadsChanges: TypeAlias = Callable[[str | None, str | None, Sequence[str]], RecordedChanges]


class Capturing:
    """A pipeline as far as its source goes; subclasses say what becomes of the changes."""

    _when_replaced = "run `penstock setup`, and `penstock verify` afterwards"
    """What to do when another table has taken the name of one that was copied."""

    def __init__(
        self,
        config: PipelineConfig,
        source: SourceConnector,
        spark: Spark,
        rules: RuleSet | None = None,
    ) -> None:
        """Use a source, which is not touched yet. Spark is started by what needs it.

        Args:
            rules: The source's tables and rows are seen through these.
        """
        self.config = config
        self._rules = rules
        self._source = source
        # In a source that others fill, nothing has to be set up, followed or freed.
        self._installed = source if isinstance(source, Installable) else None
        self._spark = spark
        self._log_watch: LogWatch | None = None
        if self._installed is not None:
            self._log_watch = LogWatch(self._installed.hold_watch, source.label, config.capture.log, self._give_up)
        self._warned: set[Uncaptured | CaptureBehind] = set()
        self._replaced: set[TableName] = set()
        self._uncaptured: set[TableName] = set()
        self.reads_changes: ReadsChanges | None = None
        """Reads the archive that the pipeline publishes to, or captures from; None where it has none."""

    @property
    def places(self) -> Mapping[str, str]:
        """Where changes come from and where they go, named without secrets."""
        raise NotImplementedError

    def status(self, log_hold: Callable[[], LogHold] | None = None) -> Status:
        """Say where the pipeline stands.

        Args:
            log_hold: Finds what the log at the source takes. To look at it reads all of it, so whoever asks for the
                status again and again gives one that looks now and then; `self.log_hold` where left out.
        """
        raise NotImplementedError

    def changes(
        self, since: str | int | None = None, until: str | int | None = None, *, tables: Sequence[str] = ()
    ) -> RecordedChanges:
        """The changes of the archive that this pipeline publishes to, or captures from; read when they are asked for.

        Args:
            since: The first transaction, as `penstock changes --from` takes it: a position, or a time of commit.
            until: The last one, in the same way.
            tables: Patterns of tables; all without one.

        Raises:
            OperatorError: The pipeline has no archive.
            ConfigError: A bound or a pattern cannot be read.
        """
        if self.reads_changes is None:
            raise OperatorError(
                f"pipeline {self.config.name} keeps no archive of changes",
                do="read one that a pipeline publishes by publish.to files; `errors().show(id)` has the changes of a"
                " transaction that failed",
            )
        begin, end = (None if bound is None else str(bound) for bound in (since, until))
        return self.reads_changes(begin, end, tuple(tables))

    def watch(self, *, every_s: float = 1.0) -> StatusSamples:
        """Samples of the status, to draw: `with pipeline.watch() as samples: ...`, or `watch().take_for(10)`."""
        return StatusSamples(self.status, every_s=every_s)

    def plot_lag(self, samples: StatusSamples | None = None, *, for_s: float = 10) -> Plot:
        """Draw the lag over time, of samples or of the next seconds.

        Raises:
            OperatorError: matplotlib is not installed.
        """
        return (samples or self.watch().take_for(for_s)).plot_lag()

    def plot_throughput(self, samples: StatusSamples | None = None, *, for_s: float = 10) -> Plot:
        """Draw the changes that are applied a second; as `plot_lag`."""
        return (samples or self.watch().take_for(for_s)).plot_throughput()

    def _repr_html_(self) -> str:
        """How a notebook shows it; nothing is connected to."""
        name = "publishes" if self.config.publish is not None else "applies"
        tables = ", ".join(self.config.capture.tables)
        return html.facts([("pipeline", f"{self.config.name}, {name}"), *self.places.items(), ("tables", tables)])

    def run(
        self,
        stop: threading.Event,
        listener: RunListener | None = None,
        *,
        until_caught_up: bool = False,
        until: str | int | None = None,
        observers: Sequence[RunObserver] = (),
    ) -> Progress:
        """Copy what is not copied yet, then follow changes until told to stop; see `ApplyProcess.run`.

        Args:
            until: Stop by itself behind the last transaction at or before this position, or time of commit, as
                `penstock run --until` takes it.
            listener: Hears how it is doing; by default the log does, see `penstock.events`. How the run ended is
                logged in any case.
            observers: Hear it, too; whatever happens to them, the run goes on.
        """
        publishes = self.config.publish is not None
        run = Run(
            stop,
            Observed(listener or Report(publishes=publishes), [*observers, *self._alerts()]),
            until_caught_up=until_caught_up,
            until=None if until is None else str(until),
            publishes=publishes,
        )

        def work() -> Progress:
            with self._told_of_locks(lambda wait: run.listener.warned(str(wait), Event.LOCK_WAITING, wait.facts)):
                try:
                    return self._run(stop, run.listener, until_caught_up=run.until_caught_up, until=run.until)
                finally:
                    if self._log_watch is not None:
                        self._log_watch.close()

        return run.carry_out(work, self._set_status)

    def _alerts(self) -> list[RunObserver]:
        """What tells people of a run, as the pipeline file asks."""
        asked = self.config.on_error
        if asked is None:
            return []
        receiver = receiver_of(asked)
        every_s, end_s = asked.every_s, asked.timeout_s + 1
        return [Alerts(self.config.name, receiver, every_s=every_s, end_s=end_s, was_down=self._was_down)]

    def _was_down(self) -> bool:
        """Whether the last run has ended in a way that `on_error` has told of; False where nobody knows."""
        return False

    def start(
        self,
        listener: RunListener | None = None,
        *,
        until_caught_up: bool = False,
        until: str | int | None = None,
        observers: Sequence[RunObserver] = (),
    ) -> BackgroundRun:
        """Begin `run` in a thread of its own."""
        return BackgroundRun(
            lambda stop: self.run(stop, listener, until_caught_up=until_caught_up, until=until, observers=observers)
        )

    def consumers(self) -> Sequence[ConsumerState]:
        """Return the consumers that the source's log is kept for, the furthest behind first."""
        if not self._source.has_capture():
            raise OperatorError("there is no capture set", where=self._source.label, do="run `penstock setup`")
        with closing(self._source.open_source()) as stream:
            return stream.consumers()

    def remove_consumer(self, name: str) -> ConsumerState:
        """Keep the log no more for a consumer of this name, or id; returns what it held back.

        Raises:
            OperatorError: There is none, or there are several of that name.
        """
        found = [c for c in self.consumers() if name in (c.consumer.name, c.consumer.id)]
        if len(found) != 1:
            ids = ", ".join(c.consumer.id for c in found)
            raise OperatorError(
                f"{len(found) or 'no'} consumers are called {name!r}",
                where=self._source.label,
                do=f"say which one by its id: {ids}" if found else "`penstock consumers` names those that there are",
            )
        assert self._installed is not None, "nobody is waited for where nothing is installed"
        self._installed.remove_consumer(found[0].consumer.id)
        return found[0]

    def captured_tables(self) -> tuple[Sequence[TableSchema], Sequence[TableSchema]]:
        """Return the tables that are captured, as the source has them, and as they are applied or published."""
        with closing(self._source.open_source()) as stream:
            applied = _existing(stream.tables(), self.is_meant)
        if self._rules is None:
            return applied, applied
        origins = {origin for one in applied for origin in (one.name, *self.origins(one.name))}
        with closing(untransformed(self._source).open_source()) as stream:
            return _existing(stream.tables(), origins.__contains__), applied

    def log_hold(self) -> LogHold:
        """Return what disk the log at the source takes, and for whom."""
        if not self._source.has_capture():
            raise OperatorError("there is no capture set", where=self._source.label, do="run `penstock setup`")
        if self._installed is not None:
            return self._installed.log_hold(OPEN_FOR)
        with closing(self._source.open_source()) as stream:
            return LogHold(consumers=stream.consumers())

    def give_up(self) -> Sequence[ConsumerState]:
        """Keep the log no more for consumers that keep more than `capture.log.give_up_gb`; returns them.

        Raises:
            OperatorError: The pipeline file sets no such limit.
        """
        if self.config.capture.log.give_up_gb is None:
            raise OperatorError(
                "the pipeline file sets no limit", where="capture.log.give_up_gb", do="set it, or name a consumer"
            )
        found = over_limit(self.log_hold(), self.config.capture.log)
        for state in found:
            self._give_up(state)
        return found

    def _give_up(self, state: ConsumerState) -> None:
        removal = self._source_removal(state.consumer, is_given_up=True)
        self._carry_out(Plan([], removal, DatabasePlan(""), []), printer="teardown")

    def _carry_out(self, plan: Plan, *, printer: str) -> Mapping[TableName, Sequence[PenstockError]]:
        raise NotImplementedError

    def _consumer(self) -> Consumer:
        """The pipeline, as the source's log knows it."""
        raise NotImplementedError

    def origins(self, table: TableName) -> Sequence[TableName]:
        """Return what a table at the target, or a published one, may be called at the source, if by another name."""
        names = self._rules.likely_sources(table) if self._rules is not None else [table]
        return [name for name in names if name != table]

    def _run(
        self, stop: threading.Event, listener: RunListener, *, until_caught_up: bool, until: str | None
    ) -> Progress:
        raise NotImplementedError

    def _set_status(self, error: PenstockError) -> None:
        """Write down which error ended a run, where `status` finds it."""

    def _lock_watches(self) -> list[LockWatch]:
        """What looks for sessions of ours that wait for locks."""
        return [self._installed.lock_watch()] if self._installed is not None else []

    def _told_of_locks(self, tell: Callable[[LockWait], None]) -> AbstractContextManager[None]:
        return told_of_locks(self._lock_watches(), tell)

    def watch_work(self) -> WorkWatch:
        """Look at what sessions of this pipeline do and wait for, wherever its run is; the caller closes it."""
        return WorkWatch(self._lock_watches())

    def is_meant(self, table: TableName) -> bool:
        """Whether the pipeline file means a table of this name, by its name at the target."""
        if self._rules is not None:
            return bool(self._rules.source_names(table))
        return any(TablePattern.parse(text).matches(table) for text in self.config.capture.tables)

    def followed(self, versions: Iterable[TableVersion], copied: Container[TableName]) -> set[TableName]:
        """The captured tables that this pipeline means, and those that it has copied; the set may have others' too."""
        return {name for name in roots(versions) if name in copied or self.is_meant(name)}

    def _check_capture(self, listener: RunListener) -> None:
        if not self._source.has_capture():
            raise OperatorError("there is no capture set", where=self._source.label, do="run `penstock setup`")
        fault = self.set_fault()
        if fault is not None:
            raise fault
        self.follow(listener)

    def follow(self, listener: RunListener) -> None:
        """Bring the capture up to date after DDL at the source, and say what is not captured and what the log takes."""
        if self._installed is None or self._log_watch is None:
            return
        self._log_watch.look(self._consumer, listener)
        for behind in self._installed.follow():
            self._warn_once(behind, listener, Event.CAPTURE_BEHIND)
        replaced = set(self._installed.replaced_tables())
        self._replaced = {table for table in replaced if not self._makes_way(table)}
        for table in sorted(self._replaced):
            reason = f"another table has taken its name; {self._when_replaced}"
            self._warn_once(Uncaptured(table, reason), listener, Event.TABLE_NOT_CAPTURED)
        self._take_up_new_tables(listener)
        uncaptured = self.not_captured()
        self._uncaptured = {
            found.table for found in uncaptured if found.awaits_setup and not self._is_declined(found.table)
        }
        # Those that make way are taken up once the change that says so is applied.
        self._uncaptured -= replaced - self._replaced
        for found in uncaptured:
            if found.table not in self._replaced:
                self._warn_once(found, listener, Event.TABLE_NOT_CAPTURED)

    def _without(self, left_out: LeftOut) -> list[str]:
        """The tables that a run has gone on without."""
        return sorted(map(str, left_out.tables | self._replaced | self._uncaptured))

    def _makes_way(self, table: TableName) -> bool:
        """Whether a table is dropped or renamed by a change that is to come, so that another may have its name."""
        return False

    def _take_up_new_tables(self, listener: RunListener) -> None:
        """Have tables captured that were made after setup, where the pipeline file says so."""

    def _is_declined(self, table: TableName) -> bool:
        """Whether a handler of the user's has said that a table which was made after setup is not wanted."""
        return False

    def _in_the_way(self, tables: Sequence[TableName]) -> Mapping[TableName, Sequence[PenstockError]]:
        """What `setup` would leave some of these tables out for."""
        raise NotImplementedError

    def set_fault(self) -> HistoryError | None:
        """Return what is wrong with the capture as a whole, once there is any."""
        if self._installed is None or not self._installed.has_capture():
            return None
        return self._installed.history_fault()

    def _found_uncaptured(self) -> Sequence[Uncaptured]:
        """The tables that the pipeline means, and whose changes are not captured."""
        return self._installed.not_captured(self.config.capture.tables) if self._installed is not None else ()

    def not_captured(self) -> Sequence[Uncaptured]:
        """Return the tables whose changes are not captured, with what is in the way of `setup` where something is."""
        found = self._found_uncaptured()
        awaiting = [one.table for one in found if one.awaits_setup]
        # Nobody remembers what an earlier setup met: what counts is what the next one would.
        in_the_way: Mapping[TableName, Sequence[PenstockError]] = {}
        # What keeps setup from being planned at all is in the way of no table more than of another.
        with suppress(OperatorError, ConfigError):
            in_the_way = self._in_the_way(awaiting) if awaiting else {}
        return [
            replace(one, reason=_left_out(in_the_way[one.table])) if one.table in in_the_way else one for one in found
        ]

    def _warn_once(self, found: Uncaptured | CaptureBehind, listener: RunListener, event: Event) -> None:
        if found not in self._warned:
            self._warned.add(found)
            listener.warned(str(found), event, found.facts)

    def _losses(self, process: ProcessState | None, verb: str) -> list[str]:
        """Say what is captured for a process, and not applied or published yet: its removal loses that."""
        if process is None or self._installed is None:
            return []
        # What cannot be asked for, such as a log that is gone, cannot be applied either.
        with suppress(PenstockError):
            if self._source.has_capture():
                with closing(self._source.open_source()) as stream:
                    stream.hold_against(process.history)
                    lost = _count_behind(stream, process.history)
                if lost:
                    return [f"{count(lost, 'transaction')} at the source {were(lost)} not {verb} and {are(lost)} lost"]
        return []

    def _source_removal(self, consumer: Consumer, *, is_given_up: bool = False) -> DatabasePlan:
        """Plan to remove a consumer of the source, and the capture set unless it has others."""
        if self._installed is None:
            return DatabasePlan(self._source.label)
        source = self._installed.removal(consumer, is_given_up=is_given_up)
        others = self.consumers() if self._source.has_capture() and len(source.steps) < 2 else []
        others = [c for c in others if c.consumer.id != consumer.id]
        if others:
            names = ", ".join(f"{c.consumer.name} ({c.consumer.target or 'a Spark stream'})" for c in others)
            source.notes.append(
                f"the capture set stays, for other consumers: {names}; `penstock consumers remove` ends one that"
                " will not return"
            )
        return source


def _existing(versions: Iterable[TableVersion], is_meant: Callable[[TableName], bool]) -> list[TableSchema]:
    """The tables that there are now, by their newest versions, in the order of their names."""
    found = root_versions(versions)
    return [found[name].table for name in sorted(found) if is_meant(name) and not found[name].is_gone]


def _left_out(faults: Sequence[PenstockError]) -> str:
    return f"setup leaves it out: {'; '.join(map(str, faults))}; then run `penstock setup` again"


def _count_behind(stream: Source, history: History) -> int:
    """Count the transactions that follow what a process has applied or published."""
    found, after, anchor = 0, history.position, history.anchor
    # No further than now: others may write on and on.
    end = stream.tick()
    while (part := stream.next_slice(after, Limit(), until=end, anchor=anchor)) is not None:
        found, after, anchor = found + len(part), part.end, part.anchor
    return found
