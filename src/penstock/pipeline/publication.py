"""A pipeline that publishes: what the command line, and any program, can do with its file."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, Unpack

from penstock.apply.detail import MOST_QUEUED_COUNTS, QueuedCount
from penstock.apply.listener import CopyListener, RunListener
from penstock.apply.parameters import Parameters
from penstock.apply.process import ApplyProcess
from penstock.apply.progress import Progress
from penstock.apply.retry import Retried, RetryOptions
from penstock.apply.retry_policy import RetryPolicy
from penstock.apply.table_counts import TableOp
from penstock.change import TableName
from penstock.config import PipelineConfig
from penstock.config.limits import retry_limit
from penstock.database import DatabasePlan
from penstock.errors import OperatorError, PenstockError, RetryableError, TableError
from penstock.history import Consumer, History, HistoryError, LogHold, no_set, other_pipeline
from penstock.pipeline.capturing import Capturing
from penstock.pipeline.connectors import DatabaseSource, RunLock
from penstock.pipeline.left_out import LeftOut
from penstock.pipeline.locks import Holders
from penstock.pipeline.plan import Plan
from penstock.pipeline.running import CopyWatch, not_for_ever
from penstock.pipeline.sink import Copying, FeedSettings, Sink, SinkLedger
from penstock.pipeline.status import SourceState, Status, not_set_up, status_of
from penstock.pipeline.steps import carry_out, nothing_to_set_up
from penstock.position import START
from penstock.rules.ruleset import RuleSet
from penstock.schema import TableSchema
from penstock.spark.starting import Spark
from penstock.stream import TableVersion, root_versions

if TYPE_CHECKING:
    # It needs what an extra brings.
    from penstock.pipeline.published_copies import CopyCancellations, CopyRequests, PublishedCopies
    from penstock.pipeline.published_queue import PublishedQueue

_LOCK_TIMEOUT_S = 5.0


class Publication(Capturing):
    """One pipeline file that publishes put to work. Every method may be called on its own, in its own process."""

    _when_replaced = "run `penstock setup`, which has it copied anew"

    def __init__(
        self,
        config: PipelineConfig,
        source: DatabaseSource,
        sink: Sink,
        spark: Spark,
        rules: RuleSet | None = None,
    ) -> None:
        """Publish from a source to a sink; neither is touched yet. Spark is started by what needs it."""
        assert config.publish is not None
        super().__init__(config, source, spark, rules)
        self._database = source
        self._publish = config.publish
        self._sink = sink

    @property
    def places(self) -> Mapping[str, str]:
        """The source and what is published to."""
        return {"source": self._source.label, "published to": self._sink.label}

    @property
    def shown_by(self) -> str:
        """What shows what was published."""
        return self._sink.words.shown

    def plan(self, *, adopt: bool = False) -> Plan:
        """Work out what `setup` would do. Changes nothing."""
        if adopt:
            raise self._refused("there are no target tables that could be adopted")
        tables = self._source.match(self.config.capture.tables)
        plan = self._plan_of(tables)
        if not plan.target.faults:
            plan.target.steps += self._sink.steps([table for table in tables if table not in plan.target.table_faults])
        fault = self.set_fault()
        if fault is not None:
            plan.source.faults, plan.source.table_faults = [fault.for_published(self._sink.words)], {}
        elif not plan.target.faults:
            parted = self._history_fault()
            plan.target.faults += [] if parted is None else [parted]
        return plan.without_bad_tables()

    def _plan_of(self, tables: Sequence[TableName]) -> Plan:
        """Plan the capture of tables, with what is in the way of publishing them."""
        plan = Plan(
            tables=[str(table) for table in tables],
            rules=self._source.explain(tables),
            source=self._source.plan(tables, self.config.capture.row_triggers),
            target=DatabasePlan(self._sink.label),
        )
        for found in self._sink.faults(self.config.capture.name, tables):
            if isinstance(found, TableError):
                plan.target.refuse(TableName(*found.table), found)
            else:
                plan.target.faults.append(found)
        return plan

    def setup(self, *, adopt: bool = False) -> Plan:
        """Install capture, and make the sink ready. Doing it again does what is still missing.

        A table that something is in the way of is left out, as long as others are left.

        Raises:
            OperatorError: Something is in the way; the message names everything at once.
        """
        plan = self.plan(adopt=adopt)
        plan.refuse_impossible()
        tables = [table for table in self._source.match(self.config.capture.tables) if table not in plan.left_out]
        self._sink.make(self.config.capture.name, tables)
        return plan.with_left_out(self._carry_out(plan, printer="plan"))

    def status(self, log_hold: Callable[[], LogHold] | None = None) -> Status:
        """Say where the pipeline stands; while the source is out of reach, as far as it was published."""
        is_made = self._sink.is_made()
        try:
            return self._status(log_hold or self.log_hold, is_made=is_made)
        except RetryableError as exc:
            # If it is the sink that is out of reach, what follows says so.
            process = self._sink.process() if is_made else None
            if process is None:
                raise
            found = status_of(
                self.config.name,
                process,
                SourceState(lost=str(exc)),
                is_running=False,
                copied=list(self._sink.copies().copied.values()),
            )
            return self._as_publishing(found)

    def _status(self, log_hold: Callable[[], LogHold], *, is_made: bool) -> Status:
        if not is_made or not self._source.has_capture():
            found = not_set_up(self.config.name)
            return self._as_publishing(self._with_published(found) if is_made else found)
        process = self._sink.process()
        refused = self._history_fault()
        copies = self._sink.copies()
        copied = copies.copied
        with closing(self._source.open_source()) as stream:
            current, hold = root_versions(stream.tables()), log_hold()
            followed = {name for name in self.followed(current.values(), copied) if name in current}
            whole = {name for name in followed if copies.is_copied(current[name].id, name)}
            requests = self._sink.requests()
            ids = {name: version.id for name, version in current.items()}
            withheld = {} if requests is None else requests.withheld(ids)
            lacking = followed - whole - withheld.keys()
            found = status_of(
                self.config.name,
                process,
                SourceState(
                    stream.backlog(process.low_watermark if process else START),
                    hold,
                    waiting=sorted(self._source.describe(lacking)) if lacking else (),
                    refused=None if refused is None else str(refused),
                    attention=[*map(str, self.not_captured()), *withheld.values(), *hold.attention],
                ),
                is_running=self._is_running(),
                copied=[copied[name] for name in whole],
            )
        return self._as_publishing(found)

    def _with_published(self, found: Status) -> Status:
        """What was published from a capture set that is not there (any more), and why that cannot go on."""
        process, refused = self._sink.process(), self._history_fault()
        if process is None:
            return found
        return replace(
            found,
            transactions=process.transactions,
            changes=process.changes,
            low_watermark=process.low_watermark,
            high_watermark=process.high_watermark,
            copied=len(self._sink.copies().copied),
            refused=None if refused is None else str(refused),
        )

    def _as_publishing(self, found: Status) -> Status:
        # What was published does not say why runs stopped.
        return replace(found, reason=None, stopped_at=None, publishes_to=self._sink.label)

    def removal(self) -> Plan:
        """Work out what `teardown` would remove. Changes nothing."""
        process = None
        if self._sink.is_made() and self._sink.copies().copied:
            process = self._sink.process()
        removal = self._source_removal(self._sink.consumer())
        return Plan([], removal, DatabasePlan(self._sink.label), losses=self._losses(process, "published"))

    def teardown(self, *, lose: bool = False) -> Plan:
        """Remove what setup made at the source; what was published stays.

        Args:
            lose: Do it also where changes are captured that were not published yet.

        Raises:
            OperatorError: The pipeline is running, or changes would be lost.
        """
        plan = self.removal()
        if not lose:
            plan.refuse_losses()
        with closing(self._lock_run()):
            self._carry_out(plan, printer="teardown")
        return plan

    def errors(self) -> PublishedQueue:
        """Open the error queue.

        Raises:
            OperatorError: Change files have none, as they hold every value.
        """
        queue = self._sink.queue()
        if queue is None:
            raise self._without_target("no error queue: change files hold every value")
        if not self._sink.is_made():
            raise OperatorError("there is no error queue yet", where=self._sink.label, do="run `penstock setup`")
        return queue

    def retry(
        self,
        entry_ids: Sequence[str],
        tell: Callable[[str], None] = lambda _: None,
        *,
        skip_gone: bool = False,
        **options: Unpack[RetryOptions],
    ) -> Iterator[Retried]:
        """Publish entries of the error queue, in commit order, one by one as they are asked for.

        See `PublishedQueue.retry`.

        Raises:
            NoEntryError: There is no entry of one of these names; then nothing is published.
            OnHoldError: An entry that is named is on hold, and this is no dry run; then nothing is published.
            OperatorError: A role was named: there is no target whose rights would count.
        """
        if options.get("as_me", False) or options.get("role") is not None:
            raise self._without_target("no target whose rights would count")
        queue = self.errors()
        with closing(self._source.open_source()) as stream:
            versions = list(stream.tables())
        yield from queue.retry(
            entry_ids,
            versions,
            edit=options.get("mend"),
            go_on=options.get("go_on", False),
            dry_run=options.get("dry_run", False),
            skip_gone=skip_gone,
        )

    def table_faults(self) -> Mapping[TableName, Sequence[PenstockError]]:
        """What keeps single tables from being captured or published; what a GRANT fixes is left out."""
        plan = self._plan_of(self._source.match(self.config.capture.tables))
        found: dict[TableName, list[PenstockError]] = {}
        for side in (plan.source, plan.target):
            for table, faults in side.table_faults.items():
                found.setdefault(table, []).extend(faults)
        return found

    def queued_counts(self) -> Sequence[QueuedCount]:
        """Count the error queue by table and error, the most frequent first; nothing before setup."""
        queue = self._sink.queue() if self._sink.is_made() else None
        entries = [] if queue is None else queue.entries()
        counts = Counter((entry.table, str(entry.error_number or "")) for entry in entries)
        return [
            QueuedCount(table, error, "failed", number)
            for (table, error), number in counts.most_common(MOST_QUEUED_COUNTS)
        ]

    def table_changes(self) -> Mapping[TableOp, int]:
        """Nobody keeps such counts: a run counts for itself."""
        return {}

    def go_on(self, *_: object, **__: object) -> Iterator[Retried]:
        """Nothing waits behind other entries."""
        return iter(())

    def conflicts(self, *_: object, **__: object) -> NoReturn:
        """Refuse: what is published meets no rows of a target."""
        raise self._without_target("no conflict log")

    def detail(self, *_: object, **__: object) -> NoReturn:
        """Refuse: there are no apply servers of which it would tell."""
        raise self._without_target("no ledger in a target")

    def verify(self, *_: object, **__: object) -> NoReturn:
        """Refuse: there is nothing that could be compared with the source."""
        raise self._without_target("no target to compare with the source")

    def resync(self, *_: object, **__: object) -> NoReturn:
        """Refuse: nothing is emptied here; `request_copies` has tables published anew."""
        raise self._without_target("no target whose tables could be emptied", do="request copies of tables")

    def resync_plan(self, *_: object, **__: object) -> NoReturn:
        """Refuse, as `resync` does."""
        raise self._without_target("no target whose tables could be emptied", do="request copies of tables")

    def request_copies(self, patterns: Sequence[str], *, recreates: bool = False) -> CopyRequests:
        """Have the next run, or the one that is at work, publish the rows of tables once more.

        Args:
            patterns: Mean captured tables, by the names that they are published under.
            recreates: Receivers are to drop the tables before they create them anew.

        Raises:
            OperatorError: A pattern means no table, or the form of what is published cannot tell of a second copy.
        """
        requests = self._requests()
        self._check_sink()
        roots = self._captured_roots()
        there = {name: roots[name].id for name in self._source.describe(roots)}
        return requests.request(patterns, there, recreates=recreates)

    def cancel_copies(self, patterns: Sequence[str]) -> CopyCancellations:
        """Cancel copies that were requested or are under way, also of tables that are gone. Raises as `request_copies`.

        A first copy that is under way is cancelled, too; one that has not begun is not.
        """
        requests = self._requests()
        self._check_sink()
        return requests.cancel(patterns, self._captured_roots())

    def follow(self, listener: RunListener) -> None:
        """Bring the capture up to date, and take up copies that the source asks for; see `Capturing.follow`."""
        super().follow(listener)
        self._take_up_asked()

    def _take_up_asked(self) -> None:
        """Request the copies that the documented tables ask for."""
        requests = self._sink.requests()
        if requests is None or not (asked := self._database.copies_asked()):
            return
        if not self._sink.is_made():
            return
        roots = {name: version.id for name, version in self._captured_roots().items() if version.id in asked}
        requests.request_again(roots)
        # Only now: a run that ends in between asks once more.
        self._database.forget_asked(asked)

    def _captured_roots(self) -> Mapping[TableName, TableVersion]:
        """The tables that this pipeline follows, by name; some may not be there any more."""
        with closing(self._source.open_source()) as stream:
            roots = root_versions(stream.tables())
        followed = self.followed(roots.values(), self._sink.copies().copied)
        return {name: version for name, version in roots.items() if name in followed}

    def _requests(self) -> PublishedCopies:
        requests = self._sink.requests()
        if requests is None:
            raise self._refused(
                "change files tell of one copy of a table, which readers take up where the table begins",
                do=self._sink.words.anew,
            )
        return requests

    def switch(self, *_: object, **__: object) -> NoReturn:
        """Refuse: what was published tells of the positions of its source."""
        raise self._without_target("no target to go on with from another source")

    def cutover(self, *_: object, **__: object) -> NoReturn:
        """Refuse: no application could go on with what was published."""
        raise self._without_target("no target that an application could go on with")

    def parameters(self, *_: object, **__: object) -> NoReturn:
        """Refuse: parameters are those of an apply process."""
        raise self._without_target("no parameters of an apply process")

    def parameters_set(self, *_: object, **__: object) -> NoReturn:
        """Refuse, as `parameters` does."""
        raise self._without_target("no parameters of an apply process")

    def set_parameter(self, *_: object, **__: object) -> NoReturn:
        """Refuse, as `parameters` does."""
        raise self._without_target("no parameters of an apply process")

    def stop_run(self, *_: object, **__: object) -> NoReturn:
        """Refuse: there is no ledger in a target that could ask a run to stop."""
        raise self._without_target("no ledger in a target, by which a run is asked to stop")

    def _run(
        self, stop: threading.Event, listener: RunListener, *, until_caught_up: bool, until: str | None
    ) -> Progress:
        if until is not None:
            raise self._refused("it can be read up to any point, so it is not published up to one")
        retry_policy = RetryPolicy(retry_limit(self._publish.retry_s), stop, listener)
        try:
            retry_policy.insist(lambda: self._check_capture(listener))
            retry_policy.insist(self._check_sink)
            if stop.is_set():
                return Progress(START)
            return self._follow_on(stop, listener, retry_policy, until_caught_up=until_caught_up)
        except HistoryError as exc:
            raise exc.for_published(self._sink.words) from exc

    def _check_sink(self) -> None:
        if not self._sink.is_made():
            raise OperatorError(
                f"there is no {self._sink.words.noun}", where=self._sink.label, do="run `penstock setup`"
            )
        for fault in (*self._sink.faults(self.config.capture.name, []), self._history_fault()):
            if fault is not None:
                raise fault

    def _in_the_way(self, tables: Sequence[TableName]) -> Mapping[TableName, Sequence[PenstockError]]:
        return self._plan_of(tables).in_the_way

    def _history_fault(self) -> OperatorError | None:
        """Why what was published cannot go on with what the source holds; None if it can, or nothing was."""
        while True:
            process = self._sink.process() if self._sink.is_made() else None
            origin = None if process is None else process.history.origin
            if origin is not None and (other := self._database.other_pipeline(origin)) is not None:
                return other_pipeline(other, self._sink.words, where=self._sink.label)
            if not self._source.has_capture():
                return None if origin is None else no_set(self._sink.words, where=self._sink.label)
            new = History(self._sink.consumer(), None, START, None, None, is_new=True)
            fault = self._database.history_fault(process.history if process else new)
            if fault is None:
                return None
            # A run that is at work has the log freed up to where it stands, which is read a moment earlier.
            if process == (self._sink.process() if self._sink.is_made() else None):
                return fault.for_published(self._sink.words)

    def _follow_on(
        self, stop: threading.Event, listener: RunListener, retry_policy: RetryPolicy, *, until_caught_up: bool
    ) -> Progress:
        spark = self._spark
        ledger = self._sink.ledger(self._lock_run)
        left_out = LeftOut(listener.warned)
        following = FeedSettings(
            source=self.config.capture.name,
            access=self._source.access,
            open_source=self._source.open_source,
            follow_source=lambda: self.follow(listener),
            take_up_asked=self._take_up_asked,
            is_meant=self.is_meant,
            uncopied=lambda versions: self._uncopied(versions, ledger),
            until_caught_up=until_caught_up,
            left_out=left_out,
        )
        feed = self._sink.feed(spark, ledger, following)
        process = ApplyProcess(
            feed=feed,
            ledger=ledger,
            prepare=lambda _, stop: self._copy(spark, ledger, stop, CopyWatch(listener, retry_policy), left_out),
            parameters=lambda: Parameters(parallelism=1),
            retry_policy=retry_policy,
            listener=listener,
        )
        with closing(ledger), closing(feed), not_for_ever(spark, stop):
            progress = process.run(stop, until_caught_up=until_caught_up)
        progress.left_out = self._without(left_out)
        return progress

    def _copy(
        self,
        spark: Spark,
        ledger: SinkLedger,
        stop: threading.Event,
        listener: CopyListener,
        left_out: LeftOut,
    ) -> Collection[TableName]:
        """Publish the rows of tables that were not yet; returns the tables that were captured when it began."""
        left_out.begin_anew()
        with closing(self._source.open_source()) as stream:
            versions = stream.tables()
        captured = self._captured(versions, ledger)
        fresh = self._uncopied(versions, ledger)
        tables = self._as_captured(captured, fresh)

        def leave_out(error: TableError) -> None:
            if captured.keys() <= left_out.tables | {TableName(*error.table)}:
                raise error
            left_out.add(error)

        copying = Copying(
            source=self.config.capture.name,
            access=self._source.access,
            versions=versions,
            tables=tables,
            ids={name: captured[name].id for name in tables},
            origin=self._database.origin(),
            confirm=lambda: self._as_captured(captured, fresh),
            leave_out=leave_out,
        )
        self._sink.copy(spark, ledger, copying, stop, listener)
        return captured

    def _captured(self, versions: Sequence[TableVersion], ledger: SinkLedger) -> dict[TableName, TableVersion]:
        followed = self.followed(versions, ledger.instantiated())
        return {name: version for name, version in root_versions(versions).items() if name in followed}

    def _uncopied(self, versions: Sequence[TableVersion], ledger: SinkLedger) -> list[TableName]:
        """The tables whose rows were not published yet, also where there are those of another one that had the name."""
        captured, cancelled = self._captured(versions, ledger), ledger.cancelled()
        lacking = [
            name
            for name, version in captured.items()
            if not ledger.is_copied(version.id, name) and cancelled.get(name) != version.id
        ]
        return sorted(self._source.describe(lacking)) if lacking else []

    def _as_captured(
        self, captured: dict[TableName, TableVersion], names: Sequence[TableName]
    ) -> dict[TableName, TableSchema]:
        """Describe tables, each as the version that it was captured under.

        Raises:
            RetryableError: One was altered since.
        """
        existing = self._source.describe(names)
        altered = [
            str(name) for name in names if name in existing and existing[name].columns != captured[name].table.columns
        ]
        if altered:
            raise RetryableError(
                f"{', '.join(altered)} was altered while the first copy was about to begin",
                where=self._source.label,
                do="the copy begins anew",
            )
        return {name: replace(table, version=captured[name].table.version) for name, table in existing.items()}

    def _lock_run(self) -> RunLock:
        """Become the one run of this pipeline; raises an `OperatorError` while another one is alive."""
        lock = self._database.lock_run(self._sink.label, wait_s=_LOCK_TIMEOUT_S)
        if lock is None:
            raise OperatorError(
                f"pipeline {self.config.name!r} is running already",
                where=self._sink.label,
                do="stop that `penstock run` first",
            )
        return lock

    def _is_running(self) -> bool:
        lock = self._database.lock_run(self._sink.label, wait_s=0)
        if lock is not None:
            lock.close()
        return lock is None

    def _carry_out(self, plan: Plan, *, printer: str) -> Mapping[TableName, Sequence[PenstockError]]:
        """Take the steps of a plan for the source; returns the tables that were left out, see `steps.carry_out`."""
        of_source = replace(plan, target=DatabasePlan(self._sink.label))
        with closing(Holders(self._lock_watches())) as holders:
            return carry_out(of_source, nothing_to_set_up(), self._database.setup(printer=printer), holders)

    def _consumer(self) -> Consumer:
        return self._sink.consumer()

    def _refused(self, why: str, *, do: str = "") -> OperatorError:
        return OperatorError(f"pipeline {self.config.name!r} publishes: {why}", where=self._sink.label, do=do)

    def _without_target(self, lacks: str, *, do: str = "") -> OperatorError:
        what = f"pipeline {self.config.name!r} publishes, and has {lacks}"
        return OperatorError(what, where=self._sink.label, do=do or self.shown_by)
