"""A pipeline: what the command line, and any program, can do with one pipeline file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.apply.conflict_log import ConflictFilter, LoggedConflict
from penstock.apply.ddl import DdlPolicy
from penstock.apply.detail import Detail
from penstock.apply.entry_edits import Mend
from penstock.apply.error_queue import ErrorQueue
from penstock.apply.keys import key_faults
from penstock.apply.ledger import ProcessState, ProcessStatus
from penstock.apply.parameters import Parameters
from penstock.apply.process import ApplyProcess, Progress
from penstock.apply.retry import Retried, RetryConfig, go_on, in_commit_order, retry
from penstock.apply.retry_policy import RetryPolicy
from penstock.apply.server import ServerConfig
from penstock.apply.settings_shown import settings_shown
from penstock.apply.target import TargetTable
from penstock.apply.virtual_dependencies import VirtualDependencies
from penstock.apply_config import retry_limit
from penstock.change import TableName
from penstock.config import PipelineConfig
from penstock.dialects.base import DatabasePlan, Emptying, MissingPart, SetupStep, Uncaptured
from penstock.errors import HandlerError, OperatorError, PenstockError, RetryableError, TableError
from penstock.events import Event
from penstock.history import HistoryError
from penstock.patterns import TablePattern
from penstock.pipeline import resync
from penstock.pipeline.capturing import Capturing, CopyWatch, RunListener, not_for_ever
from penstock.pipeline.conflicts import conflict_faults
from penstock.pipeline.connectors import (
    COMPARE_EXTERNAL,
    DatabaseSource,
    EventSource,
    SourceConnector,
    SourceWithCopies,
    TargetConnector,
    TargetLedger,
    database_of,
)
from penstock.pipeline.control import Control
from penstock.pipeline.cutover import Cutover, cutover
from penstock.pipeline.cutover import CutoverPipeline as CutoverWay
from penstock.pipeline.errors import Errors
from penstock.pipeline.feed import SparkFeed, names_to_come
from penstock.pipeline.handlers import handler_faults, statement_faults
from penstock.pipeline.left_out import LeftOut
from penstock.pipeline.locks import Holders, LockWatch
from penstock.pipeline.new_parts import NewParts
from penstock.pipeline.new_tables import NewTables
from penstock.pipeline.plan import Plan
from penstock.pipeline.post_data import PostDataWork
from penstock.pipeline.replay import Replay, check_columns, refuse_before_copies
from penstock.pipeline.report import VerifyReport
from penstock.pipeline.resync import Resync
from penstock.pipeline.status import MissingColumns, Status, lacking, not_set_up, status_of
from penstock.pipeline.steps import carry_out, nothing_to_set_up
from penstock.pipeline.switch import Switched, SwitchPipeline, switch
from penstock.pipeline.transformed import untransformed
from penstock.pipeline.trimming import Trimming
from penstock.position import START, Scn
from penstock.rules.ruleset import RuleSet
from penstock.schema import TableSchema
from penstock.snapshot.instantiate import CopyListener, CopyOrigin, Instantiator
from penstock.snapshot.task import CopyContext
from penstock.spark.job import CompareJobs, SparkChunkJobs, for_each
from penstock.spark.starting import Spark
from penstock.stream import Source, given_up, roots
from penstock.text import are, count
from penstock.verify import compare
from penstock.verify.compare import VerifyListener, VerifyResult
from penstock.verify.comparer import Comparer, not_copied


class Pipeline(Capturing):
    """One pipeline file that applies put to work. Every method may be called on its own, in its own process."""

    def __init__(
        self,
        config: PipelineConfig,
        source: SourceConnector,
        target: TargetConnector,
        spark: Spark,
        rules: RuleSet | None = None,
    ) -> None:
        """Use two databases; neither is touched yet. Spark is started by what needs it."""
        assert config.apply is not None
        super().__init__(config, source, spark, rules)
        self._apply = config.apply
        self._control = Control(config.name, target, config.apply.parameters)
        self._target = target
        self._handlers = config.handlers
        self._lacking: Sequence[MissingColumns | MissingPart] = ()
        self._new_tables = NewTables(self._handlers, target.error_queue, source.describe, self._set_up_new)

    def plan(self, *, adopt: bool = False) -> Plan:
        """Work out what `setup` would do. Changes nothing."""
        tables = self._source.match(self.config.capture.tables)
        described = self._source.describe(tables)
        installed = self._installed
        named = self._named_faults({**described, **self._describe_named()})
        if adopt:
            database_of(self._source)
        coming = self._renamed_by_the_run()
        there = [table for table in tables if table not in coming]
        post_data = self._source.post_data(there) if isinstance(self._source, DatabaseSource) else None
        plan = Plan(
            tables=[str(table) for table in tables],
            rules=self._source.explain(tables),
            source=self._source.plan(tables, self.config.capture.row_triggers),
            target=self._target.plan(
                self._source.blueprint(there),
                {name: table for name, table in described.items() if name not in coming},
                installed.replaced_tables() if installed is not None else (),
                adopt=adopt,
                keeps=not self._apply.first_copy,
                post_data=post_data,
                firing={pattern: table.triggers for pattern, table in self._apply.tables.items() if table.triggers},
                keyed=self._apply.keys.keys(),
            ),
        )
        plan.target.faults = [*plan.target.faults, *named]
        plan.target.notes += [
            f"{name} is made by the run, by renaming the copy that there is" for name in sorted(coming)
        ]
        if not isinstance(self._source, DatabaseSource):
            what = "`verify`, `resync TABLE` and `setup --adopt` have nothing to compare with here"
            plan.source.notes.append(f"{what}: {COMPARE_EXTERNAL}")
        if isinstance(self._source, DatabaseSource) and post_data is not None:
            hidden = self._source.sequence_reader(post_data).hidden
            plan.source.notes += [f"a sequence is not kept in step until it may be read: {grant}" for grant in hidden]
        plan.target.faults.extend(self._conflict_faults(described))
        plan.target.faults.extend(self._handler_faults(described))
        fault = self._set_fault()
        if fault is not None:
            # This fault causes the others; name it alone.
            plan.source.faults, plan.target.faults = [fault], []
            plan.source.table_faults, plan.target.table_faults = {}, {}
        if installed is not None and installed.identity() == self._target.identity():
            what = "source and target are the same database"
            # It causes all the others: the tables that are there are the source's own.
            plan.source.faults, plan.target.differences = [], []
            plan.target.faults = [OperatorError(what, where=self._target.label, do="correct one of the urls")]
            plan.target.table_faults = {}
        plan = plan.without_bad_tables()
        return replace(plan, refused=self._parted()) if plan.is_possible else plan

    def _renamed_by_the_run(self) -> Collection[TableName]:
        """Names of tables whose copies go by earlier ones until a run gets to the change that says so."""
        ddl = self._apply.ddl_rules
        # What keeps the two from being asked is told as a fault.
        with suppress(OperatorError):
            if not ddl.is_followed or not (self._target.has_ledger() and self._source.has_capture()):
                return ()
            with closing(self._target.ledger()) as ledger, closing(self._source.open_source()) as stream:
                copied = ledger.instantiated()
                return set(names_to_come(stream.tables(), copied, ddl)) - set(copied)
        return ()

    def setup(self, *, adopt: bool = False) -> Plan:
        """Install capture and ledger, and make the tables that are missing at the target.

        What locks a table that is written to, its capture first of all, is taken in a transaction of its own; all the
        rest is done in both databases, or in none. Doing it again does what is still missing. A table that something is
        in the way of is left out, as long as others are left.

        Args:
            adopt: Tables at the target that hold rows are not refused: the first copy compares their rows with the
                source's, and writes those that differ.

        Returns:
            What was done, and which tables are left out.

        Raises:
            OperatorError: Something is in the way of all tables; the message names everything at once.
        """
        plan = self.plan(adopt=adopt)
        plan.refuse_impossible()
        plan = plan.with_left_out(self._carry_out(plan, printer="plan"))
        return replace(plan, refused=self._parted())

    def status(self) -> Status:
        """Say where the pipeline stands; while the source is out of reach, as far as the ledger knows."""
        if not self._target.has_ledger():
            return not_set_up(self.config.name)
        with closing(self._target.ledger()) as ledger:
            try:
                return self._status(ledger)
            except RetryableError as exc:
                # Where it is the target that went, what follows says so.
                process, copied = ledger.state(), ledger.instantiated()
                if process is None:
                    raise
                return status_of(
                    self.config.name,
                    process,
                    None,
                    (),
                    is_running=ledger.is_running(),
                    copied=list(copied.values()),
                    to_copy=0,
                    refused=None,
                    attention=(),
                    source_lost=str(exc),
                )

    def _status(self, ledger: TargetLedger) -> Status:
        if not self._source.has_capture():
            return not_set_up(self.config.name)
        with closing(self._source.open_source()) as stream:
            refused = None
            try:
                process = _held(ledger, stream)
            except OperatorError as exc:
                process, refused = ledger.state(), str(exc)
            copied = ledger.instantiated()
            versions = stream.tables()
            followed = set(self._followed(versions, copied)) - given_up(versions, copied)
            return status_of(
                self.config.name,
                process,
                stream.backlog(process.low_watermark if process else START),
                stream.consumers(),
                is_running=ledger.is_running(),
                copied=[copied[name] for name in followed if name in copied],
                to_copy=len(followed - set(copied)),
                refused=refused,
                attention=self._attention(followed & set(copied)),
            )

    def detail(self) -> Detail | None:
        """Say what the ledger knows beyond `status`, by apply server and by table; None before setup."""
        if not self._target.has_ledger():
            return None
        with closing(self._target.ledger()) as ledger:
            return ledger.detail()

    def conflicts(self, wanted: ConflictFilter) -> Sequence[LoggedConflict]:
        """Return what the conflict log says, the newest first."""
        if not self._target.has_ledger():
            raise OperatorError("there is no conflict log yet", where=self._target.label, do="run `penstock setup`")
        with closing(self._target.ledger()) as ledger:
            return ledger.conflicts(wanted)

    def verify(
        self, listener: VerifyListener | None = None, tables: Sequence[str] = (), *, repair: bool = False
    ) -> VerifyResult:
        """Compare both sides row by row, also while changes flow.

        Args:
            tables: Patterns, as in the pipeline file, of the tables to compare; all of them if there are none.
            repair: Bring the rows that differ; see `verify.compare.verify`.

        Raises:
            OperatorError: Nothing is set up, none of the tables can be compared, a pattern means no table of the
                pipeline, or the target refuses a row that is brought. Where only some of the tables cannot be
                compared, the result names them.
            RetryableError: What was captured was not applied in time.
        """
        listener = listener or VerifyReport()
        database = database_of(self._source)
        if not (self._target.has_ledger() and self._source.has_capture()):
            raise OperatorError("there is nothing to compare yet", do="run `penstock setup`, then `penstock run`")
        with (
            self._told_of_locks(lambda wait: listener.warned(str(wait))),
            closing(self._target.ledger()) as ledger,
            closing(self._source.open_source()) as stream,
        ):
            _held(ledger, stream)
            uncaptured = self._not_captured()
            copied = ledger.instantiated()
            followed = self._followed(stream.tables(), copied)
            if tables:
                followed, uncaptured = self._only(tables, followed, uncaptured)
            source = self._source.describe(followed - {found.table for found in uncaptured})
            target = self._target.describe(source)
            faults = self._compare_faults(source, target, copied)
            source = {name: table for name, table in source.items() if name not in faults}
            if repair:
                self._refuse_shared(ledger.copied_by_others(sorted(source)))
            chunks = database.origin().cut_into_chunks(sorted(source))
            context = compare.CompareContext(Comparer(database.compared(), self._target.compared()), source, target)
            is_quick = compare.are_few(chunks)
            jobs = compare.LocalJobs(context) if is_quick else CompareJobs(self._spark, context)
            began_at = _low_watermark(ledger)
            result = compare.verify(
                chunks,
                jobs,
                listener,
                consistency_point=lambda: _low_watermark(ledger),
                tick=stream.tick,
                is_running=ledger.is_running,
                repair=repair,
            )
            if repair:
                ledger.note_brought([table.table for table in result.tables if not table.differing], began_at)
            root_of = {version.table.name: version.root for version in stream.tables()}
            result = compare.with_queued(result, self._error_queue().count_by_table(root_of))
            unseen = self._target.unseen(database.beside(source), of_all=not tables)
            unchecked = [*map(str, uncaptured), *map(str, faults.values())]
            return replace(result, unchecked=unchecked, unseen=unseen)

    def _compare_faults(
        self,
        source: Mapping[TableName, TableSchema],
        target: Mapping[TableName, TableSchema],
        copied: Collection[TableName],
    ) -> Mapping[TableName, OperatorError]:
        """Why some tables cannot be compared, by name.

        Raises:
            OperatorError: None of them can be.
        """
        faults: dict[TableName, OperatorError] = {}
        for name in sorted(source):
            if name not in copied:
                faults[name] = not_copied([name])
            elif name not in target:
                faults[name] = OperatorError(f"{name} does not exist at the target", where=self._target.label)
            elif (fault := self._copy_fault(source[name], target[name])) is not None:
                faults[name] = fault
        if faults and len(faults) == len(source):
            waiting = [name for name in faults if name not in copied]
            raise not_copied(waiting) if waiting else OperatorError("\n".join(map(str, faults.values())))
        return faults

    def origins(self, table: TableName) -> Sequence[TableName]:
        """What a table at the target may be called at the source, where that is another name."""
        names = self._rules.likely_sources(table) if self._rules is not None else [table]
        return [name for name in names if name != table]

    def errors(self) -> Errors:
        """Open the error queue."""
        return Errors(self._error_queue(), self.origins, self._apply.keys)

    def _error_queue(self) -> ErrorQueue:
        if not self._target.has_ledger():
            raise OperatorError("there is no error queue yet", where=self._target.label, do="run `penstock setup`")
        return self._target.error_queue()

    def retry(
        self,
        entry_ids: Sequence[str],
        tell: Callable[[str], None] = lambda _: None,
        *,
        mend: Mend | None = None,
        as_me: bool = False,
        role: str | None = None,
        go_on: bool = False,
        dry_run: bool = False,
    ) -> Iterator[Retried]:
        """Apply entries of the error queue again, in commit order, one by one as they are asked for.

        See `apply.retry.retry`, and `apply.retry.RetryConfig` for the options.

        Raises:
            NoEntryError: There is no entry of one of these names; then nothing is applied.
        """
        config = replace(self._retry_config, mend=mend, as_me=as_me, role=role, go_on=go_on, dry_run=dry_run)
        for fault in self._handlers.check():
            raise fault
        queue = self._error_queue()
        with self._told_of_locks(lambda wait: tell(str(wait))):
            yield from retry(queue, in_commit_order(queue, entry_ids), config, tell=tell)

    def go_on(self, tell: Callable[[str], None] = lambda _: None) -> Iterator[Retried]:
        """Apply what has waited in the error queue, and waits for nothing any more; see `apply.retry.go_on`."""
        with self._told_of_locks(lambda wait: tell(str(wait))):
            yield from go_on(self._error_queue(), self._retry_config, tell=tell)

    @property
    def _retry_config(self) -> RetryConfig:
        return RetryConfig(
            allow_duplicate_rows=self.parameters().allow_duplicate_rows,
            keys=self._apply.keys,
            conflicts=self._apply.conflict_rules,
            handlers=self._handlers,
            ddl=self._apply.ddl_rules,
        )

    def parameters(self) -> Parameters:
        """How the process works, as the file and what was set have it now."""
        return self._control.parameters()

    def parameters_set(self) -> Collection[str]:
        """The names of the parameters that were set, and so come before the file."""
        return self._control.were_set()

    def set_parameter(self, name: str, text: str | None) -> None:
        """Set a parameter; see `control.Control.set`."""
        self._control.set(name, text)

    def stop_run(self, *, force: bool = False, wait_s: float = 60) -> ProcessState:
        """Ask the run that is at work, wherever that is, to stop; see `control.Control.stop_run`."""
        return self._control.stop_run(force=force, wait_s=wait_s)

    def resync_plan(self) -> Resync:
        """Work out what `resync` would do away with. Changes nothing; raises as it does."""
        return resync.plan(self._source, self._target)

    def resync(self, tell: Callable[[str], None] = lambda _: None) -> Emptying:
        """Prepare a new first copy of everything, which the next run makes.

        Args:
            tell: Called with the session that keeps it waiting for a lock.

        Raises:
            OperatorError: The process is running, or was not set up.
        """

        def take(steps: Sequence[SetupStep]) -> None:
            plan = Plan([], DatabasePlan(self._source.label, list(steps)), DatabasePlan(self._target.label))
            self._carry_out(plan, printer="teardown")

        connection = self.config.capture.name
        with self._told_of_locks(lambda wait: tell(str(wait))):
            return resync.carry_out(self._source, self._target, connection=connection, take=take, setup=self.setup)

    def switch(
        self,
        after: Pipeline,
        stop: threading.Event,
        listener: RunListener | None = None,
        *,
        wait_s: float = 60,
        keep_capture: bool = False,
    ) -> Switched:
        """Go on from another source of the same database, which `after` says, without a new first copy.

        Applies what is captured until now; then the next run of `after` goes on behind exactly that, and the capture
        set is removed as `teardown` removes it. Called again, it does what is still missing.

        Args:
            stop: Set to give up before anything is changed.
            listener: Hears how the last run from this source does.
            wait_s: How long the other source may take to tell of a transaction.
            keep_capture: Leave the capture set as it is. It goes on writing its log.

        Raises:
            ConfigError: More differs between the two files than where changes come from.
            OperatorError: See `pipeline.switch`.
        """
        done = switch(
            SwitchPipeline(self.config, self._source, self._target),
            SwitchPipeline(after.config, after._source, after._target),
            lambda: self.run(stop, listener, until_caught_up=True),
            stop,
            wait_s=wait_s,
        )
        if keep_capture:
            return done
        with closing(self._target.ledger()) as ledger:
            removal = self._source_removal(ledger.consumer())
        self._carry_out(Plan([], removal, DatabasePlan(self._target.label)), printer="teardown")
        return replace(done, removed=[step.summary for step in removal.steps], notes=removal.notes)

    def cutover(
        self,
        stop: threading.Event,
        listener: RunListener | None = None,
        *,
        lock: bool = False,
        wait_s: float = 60,
        is_dry: bool = False,
    ) -> Cutover:
        """Make the copy ready to be written to instead of the source; see `pipeline.cutover.cutover`.

        What is not applied yet is applied by the run that is alive, or else by this call.

        Raises:
            OperatorError: Nothing is set up, or tables are not copied yet.
        """
        if not (self._target.has_ledger() and self._source.has_capture()):
            do = "run `penstock setup`, then `penstock run`"
            raise OperatorError("there is no copy yet", where=self._target.label, do=do)
        with closing(self._target.ledger()) as ledger, closing(self._source.open_source()) as stream:
            _held(ledger, stream)
            copied = ledger.instantiated()
            versions = stream.tables()
            followed = sorted(self._followed(versions, copied) - given_up(versions, copied))
        waiting = [name for name in followed if name not in copied]
        if waiting or not followed:
            raise (
                not_copied(waiting)
                if waiting
                else OperatorError(
                    "no table is copied yet", where=self._target.label, do="let `penstock run` copy them first"
                )
            )
        return cutover(
            CutoverWay(
                self._source,
                self._target,
                sorted(self._source.describe(followed)),
                [str(found) for found in self._not_captured()],
                run=lambda: self.run(stop, listener, until_caught_up=True),
                verify=self.verify,
            ),
            stop,
            lock=lock,
            wait_s=wait_s,
            is_dry=is_dry,
        )

    def removal(self) -> Plan:
        """Work out what `teardown` would remove. Changes nothing; raises as it does."""
        # First what may be refused.
        target = self._target.removal()
        process = None
        with closing(self._target.ledger()) as ledger:
            consumer = ledger.consumer()
            # Teardown goes for ledgers of earlier versions, too, which cannot be asked all of this.
            with suppress(PenstockError):
                # Before the first copy the source's own tables hold all that is captured.
                process = ledger.state() if target.steps and ledger.instantiated() else None
        return Plan([], self._source_removal(consumer), target, losses=self._losses(process, "applied"))

    def teardown(self, *, lose: bool = False) -> Plan:
        """Remove what setup made, except target tables and their data; returns what was removed.

        The capture set stays as long as it has other consumers.

        Args:
            lose: Do it also where changes are captured that were not applied yet.

        Raises:
            OperatorError: The process is running, its error queue holds transactions, or changes would be lost.
        """
        plan = self.removal()
        if not lose:
            plan.refuse_losses()
        self._carry_out(plan, printer="teardown")
        return plan

    def _run(
        self, stop: threading.Event, listener: RunListener, *, until_caught_up: bool, until: str | None
    ) -> Progress:
        apply = self._apply
        retry_policy = RetryPolicy(retry_limit(apply.retry_s), stop, listener)
        retry_policy.insist(lambda: self._check_capture(listener))
        retry_policy.insist(lambda: self._check_target(listener, stop))
        end = None if until is None else self._end(until, listener)
        if stop.is_set():
            return Progress(START)
        spark = self._spark
        events = untransformed(self._source)
        if isinstance(events, EventSource):
            events.look_in(partial(for_each, spark))
        with closing(self._target.ledger()) as ledger:
            replay = (
                Replay(self._source, self._target, self._is_meant, self._apply.on_bad_row)
                if isinstance(self._source, SourceWithCopies)
                else None
            )
            parts = self._new_parts()
            left_out = LeftOut(listener.warned)
            feed = SparkFeed(
                spark,
                source=self.config.capture.name,
                access=self._source.access,
                open_source=self._source.open_source,
                target=self._target.access,
                describe_target=self._target.describe,
                follow_source=lambda: self._follow(listener),
                compare=lambda followed, at_target: self._tell_lacking(followed, at_target, listener),
                is_meant=self._is_meant,
                definitions=ledger,
                left_out=left_out,
                reached=replay.check if replay is not None else lambda _: None,
                until=end,
                ddl=apply.ddl_rules,
                virtual=self._virtual,
                keys=apply.keys,
                follow_parts=lambda: parts is not None and parts.follow(listener),
            )
            copy_listener = CopyWatch(listener, retry_policy)
            post_data_work = None
            if isinstance(self._source, DatabaseSource):
                post_data_work = PostDataWork(self._source, self._target, listener.warned)

            def prepare(state: ProcessState, stop: threading.Event) -> Collection[TableName]:
                ledger.note_settings(self._settings_shown())
                left_out.begin_anew()
                if replay is not None:
                    return replay.prepare(spark, ledger, state, stop, copy_listener)
                assert isinstance(self._source, DatabaseSource)
                captured = self._copy(
                    spark,
                    ledger,
                    state,
                    stop,
                    copy_listener,
                    left_out=left_out,
                    origin=self._source.origin(),
                    until=end,
                )
                if post_data_work is not None:
                    post_data_work.begin(ledger.instantiated())
                return captured

            trimming = Trimming(ledger, apply.conflict_log_kept)

            def parameters() -> Parameters:
                trimming.look()
                found = self._control.parameters_in(ledger)
                feed.use(
                    ServerConfig(
                        disable_on_error=found.disable_on_error,
                        max_errors=None if found.max_errors is None else max(1, found.max_errors - process.errors),
                        allow_duplicate_rows=found.allow_duplicate_rows,
                        ignored=found.ignore_transaction,
                        conflicts=apply.conflict_rules,
                        handlers=self._handlers,
                        hold_dependents=apply.hold_dependents,
                        ddl=apply.ddl_rules,
                    )
                )
                return found

            process = ApplyProcess(
                source=self.config.capture.name,
                feed=feed,
                ledger=ledger,
                prepare=prepare,
                parameters=parameters,
                retry_policy=retry_policy,
                listener=listener,
                holds=apply.hold_dependents,
            )
            is_finished = False
            try:
                with closing(feed), not_for_ever(spark, stop), self._control.stops(spark, stop):
                    progress = process.run(stop, until_caught_up=until_caught_up, until=end)
                is_finished = not stop.is_set()
                progress.left_out = self._without(left_out)
                return progress
            finally:
                if post_data_work is not None:
                    post_data_work.end(is_hurried=not is_finished)
                if parts is not None:
                    parts.close()

    def _settings_shown(self) -> Mapping[str, Any]:
        apply = self._apply
        return settings_shown(
            tag=apply.tag,
            parameters=apply.parameters,
            keys=apply.keys,
            conflicts=apply.conflict_rules,
            handlers=self._handlers,
            virtual=self._virtual,
        )

    def _note_stop(self, error: PenstockError) -> None:
        # The ledger may be out of reach, or another role's: then there is nowhere to note it. And whatever goes wrong
        # here, the error that ended the run is the one to be raised.
        with suppress(Exception):
            if self._target.has_ledger():
                with closing(self._target.ledger()) as ledger:
                    ledger.note_stop(str(error), is_aborted=isinstance(error, HandlerError))

    def _lock_watches(self) -> list[LockWatch]:
        return [*super()._lock_watches(), self._target.lock_watch()]

    def _carry_out(self, plan: Plan, *, printer: str) -> Mapping[TableName, Sequence[PenstockError]]:
        """Take the steps of a plan; returns the tables that were left out, see `steps.carry_out`."""
        with closing(Holders(self._lock_watches())) as holders:
            installed = self._installed
            source = installed.setup(printer=printer) if installed is not None else nothing_to_set_up()
            return carry_out(plan, self._target.setup(printer=printer), source, holders)

    def _end(self, until: str, listener: RunListener) -> Scn:
        """Find the point that a run is to end at.

        Raises:
            OperatorError: The target is behind it already, or cannot be made whole as of that point.
        """
        end = self._source.position_of(until, option="--until")
        with closing(self._target.ledger()) as ledger:
            reached = max([_low_watermark(ledger), *ledger.instantiated().values()])
        if reached > end:
            raise OperatorError(
                f"--until {until} is position {end}, and the target is at position {reached} already",
                where=self._target.label,
                do="name a later point; an earlier one is restored to a database that holds nothing of the pipeline",
            )
        if isinstance(self._source, SourceWithCopies):
            tables = self._source.match(self.config.capture.tables)
            refuse_before_copies(self._source.first_copies(tables), tables, end, listener, where=self._source.label)
        return end

    def _conflict_faults(self, tables: Mapping[TableName, TableSchema]) -> list[OperatorError]:
        """What is wrong with what the file says of conflicts in these tables, by their names at the target."""
        conflicts = self._apply.conflict_rules
        if not conflicts.tables:
            return []
        there = self._target.describe([name for name in conflicts.tables if name in tables])
        return conflict_faults(conflicts, {**tables, **there}, where=self._target.label)

    def _handler_faults(self, tables: Mapping[TableName, TableSchema]) -> list[OperatorError]:
        """What is wrong with the handlers of the file, for these tables, by their names at the target."""
        settings = self._handlers
        if not settings.tables:
            return list(settings.check())
        there, where = self._target.describe(settings.tables), self._target.label
        found = [*settings.check(), *handler_faults(settings, tables, there, where=where)]
        if found or not self._target.has_ledger():
            # Before setup, tables that it makes are not there yet.
            return found
        return statement_faults(settings, self._target.statement_faults, where=where)

    @property
    def _virtual(self) -> VirtualDependencies:
        return self._apply.dependencies.virtual

    @property
    def _named(self) -> frozenset[TableName]:
        """The tables at the target that the `apply` part of the file names."""
        return self._virtual.tables | self._apply.keys.keys()

    def _named_faults(self, tables: Mapping[TableName, TableSchema]) -> list[OperatorError]:
        """What the `apply` part of the file names and the target does not have, or not so."""
        do = "correct `apply` in the pipeline file, where tables and columns go by their names at the target"
        found = [*self._virtual.faults(tables), *key_faults(self._apply.keys, tables)]
        return [OperatorError(what, where=self._target.label, do=do) for what in found]

    def _describe_named(self) -> Mapping[TableName, TableSchema]:
        return self._target.describe(self._named) if self._named else {}

    def _check_target(self, listener: RunListener, stop: threading.Event) -> None:
        self._target.check()
        for fault in self._named_faults(self._describe_named()):
            raise fault
        for error in self._handlers.check():
            raise error
        if self._apply.tables:
            tables = self._source.match(self.config.capture.tables)
            described = self._source.describe(tables)
            faults = [*self._conflict_faults(described), *self._handler_faults(described)]
            if faults:
                raise OperatorError("\n".join(map(str, faults)))
        with closing(self._target.ledger()) as ledger:
            self._control.wait_for_other(ledger, stop)
            if stop.is_set():
                return
            ledger.ask_to_stop(None)
            state = ledger.state()
            if state is not None and state.status is ProcessStatus.ABORTED and state.error is not None:
                listener.warned(f"the last run stopped at the first error ({state.error}); this one goes on behind it")
            if state is not None and state.errors:
                held = f"the error queue holds {count(state.errors, 'transaction')}"
                listener.warned(f"{held}; `penstock errors list` says why")

    def _makes_way(self, table: TableName) -> bool:
        return self._apply.ddl_rules.of(table) is not DdlPolicy.IGNORE

    def _take_up_new_tables(self, listener: RunListener) -> None:
        if self._apply.ddl is not DdlPolicy.APPLY:
            return
        with closing(self._target.ledger()) as ledger:
            copied, state = ledger.copied_from(), ledger.state()

        def find() -> list[Uncaptured]:
            # The copy of a name is of the table that had it before, until the change comes that takes it away.
            return [one for one in self._found_uncaptured() if one.is_there and one.table not in copied]

        self._new_tables.follow(find, lambda: Scn(0) if state is None else state.low_watermark, listener)

    def _is_declined(self, table: TableName) -> bool:
        return self._new_tables.declines(table)

    def _in_the_way(self, tables: Sequence[TableName]) -> Mapping[TableName, Sequence[PenstockError]]:
        return self._plan_of_new(tables).in_the_way

    def _new_parts(self) -> NewParts | None:
        if not isinstance(self._source, DatabaseSource):
            return None

        def carry_out(plan: DatabasePlan) -> None:
            whole = Plan([], DatabasePlan(self._source.label), plan)
            whole.with_left_out(self._carry_out(whole, printer="plan"))

        patterns, rules = self.config.capture.tables, self._apply.ddl_rules
        return NewParts(self._source, self._target, patterns, rules, carry_out)

    def _set_up_new(self, tables: Sequence[TableName]) -> None:
        plan = self._plan_of_new(tables).without_bad_tables()
        plan.refuse_impossible()
        plan.with_left_out(self._carry_out(plan, printer="plan")).refuse_left_out()

    def _plan_of_new(self, tables: Sequence[TableName]) -> Plan:
        """Plan what `setup` would do for tables alone: others may be altered, and follow only later."""
        patterns = [p for p in self.config.capture.row_triggers if any(map(TablePattern.parse(p).matches, tables))]
        return Plan(
            tables=[str(table) for table in tables],
            rules=self._source.explain(tables),
            source=self._source.plan(tables, patterns),
            target=self._target.plan(
                self._source.blueprint(tables),
                self._source.describe(tables),
                (),
                adopt=False,
                keeps=not self._apply.first_copy,
                post_data=self._source.post_data(tables) if isinstance(self._source, DatabaseSource) else None,
                firing={},
                keyed=self._apply.keys.keys(),
            ),
        )

    def _only(
        self, patterns: Sequence[str], followed: set[TableName], uncaptured: Sequence[Uncaptured]
    ) -> tuple[set[TableName], list[Uncaptured]]:
        chosen = [TablePattern.parse(text) for text in patterns]
        names = followed | {found.table for found in uncaptured}

        def means(pattern: TablePattern, table: TableName) -> bool:
            return pattern.matches(table) or any(map(pattern.matches, self.origins(table)))

        unknown = [repr(p.text) for p in chosen if not any(means(p, name) for name in names)]
        if unknown:
            raise OperatorError(
                f"no table of the pipeline matches {', '.join(unknown)}",
                where=self._source.label,
                do="`penstock plan` counts them; write schema.table, as the catalogue spells it",
            )
        found = [one for one in uncaptured if any(means(p, one.table) for p in chosen)]
        return {name for name in followed if any(means(p, name) for p in chosen)}, found

    def _attention(self, copied: Collection[TableName]) -> list[str]:
        found = [
            *lacking(self._source.describe(copied), self._target.describe(copied)),
            *self._lacking_parts(),
            *self._not_captured(),
        ]
        return [str(one) for one in found]

    def _parted(self) -> str | None:
        """Why source and target are not of one history; None where they are, or where that cannot be told yet."""
        if self._installed is None:
            return None
        # What else keeps the two from being asked is told as a fault, or put in order by setup.
        with suppress(OperatorError):
            if not (self._target.has_ledger() and self._source.has_capture()):
                return None
            with closing(self._target.ledger()) as ledger, closing(self._source.open_source()) as stream:
                try:
                    _held(ledger, stream)
                except HistoryError as exc:
                    return str(exc)
        return None

    def _lacking_parts(self) -> Sequence[MissingPart]:
        installed, rules = self._installed, self._apply.ddl_rules
        if installed is None:
            return ()
        patterns = self.config.capture.tables
        found = self._target.lacking(installed.parts(patterns))
        if not (found and rules.is_applied):
            return found
        left = self._target.lacking(installed.parts(patterns, lambda table: rules.of(table) is DdlPolicy.APPLY))
        return [one if one in left else replace(one, is_followed=True) for one in found]

    def _refuse_shared(self, others: Mapping[TableName, str]) -> None:
        for name, other in others.items():
            raise OperatorError(
                f"table {name} holds rows that process {other!r} copied, which a repair would delete",
                where=self._target.label,
                do="name the tables to repair, or leave it out of capture.tables in one of the two pipeline files",
            )

    def _tell_lacking(
        self, followed: Iterable[TableName], at_target: Mapping[TableName, TableSchema], listener: RunListener
    ) -> bool:
        """Report what the target lacks, once as long as it does; return whether tables or columns are lacking."""
        # A table that is to follow will have it once the change that says so is applied, or in the error queue.
        left = [name for name in followed if self._apply.ddl_rules.of(name) is not DdlPolicy.APPLY]
        tables = lacking(self._source.describe(left), at_target)
        parts = [part for part in self._lacking_parts() if not part.is_followed]
        found: list[MissingColumns | MissingPart] = [*tables, *parts]
        for one in found:
            if one not in self._lacking:
                listener.warned(str(one), Event.TARGET_LACKS, one.facts)
        self._lacking = found
        # Missing parts do not count: no definition changes when they are added.
        return bool(tables)

    def _copy(
        self,
        spark: Spark,
        ledger: TargetLedger,
        state: ProcessState,
        stop: threading.Event,
        listener: CopyListener,
        *,
        left_out: LeftOut,
        origin: CopyOrigin,
        until: Scn | None,
    ) -> Collection[TableName]:
        """Copy what is not copied yet; returns the tables that were captured when it began.

        A table that cannot be copied is left out, as long as there are others.
        """
        with closing(self._source.open_source()) as stream:
            versions = stream.tables()
        copied = set(ledger.instantiated())
        to_come = names_to_come(versions, copied, self._apply.ddl_rules)
        followed = self._followed(versions, copied) - set(to_come)
        captured = {name: table for name, table in roots(versions).items() if name in followed}
        existing = self._source.describe(captured)
        at_target = self._target.describe(captured)

        def leave_out(error: TableError) -> None:
            if existing.keys() | copied <= left_out.tables | {TableName(*error.table)}:
                raise error
            left_out.add(error)

        for name in sorted(set(existing) - copied):
            fault = self._copy_fault(existing[name], at_target.get(name))
            if fault is not None:
                leave_out(TableError.of(fault, (name.schema, name.name)))
        copyable = sorted(name for name in existing if name in at_target and name not in left_out.tables)
        if until is not None and not set(copyable) <= copied:
            rest = sorted(set(copyable) - copied)
            raise OperatorError(
                f"{', '.join(map(str, rest))} {are(len(rest))} not copied yet, and a copy is as of now:"
                f" it would hold more than position {until}",
                where=self._target.label,
                do="run without `--until` first; only from change files a target is restored as of an earlier point",
            )

        def confirm() -> None:
            found = self._source.describe(captured)
            altered = [str(name) for name in sorted(captured) if found.get(name) != existing.get(name)]
            if altered:
                raise RetryableError(
                    f"{', '.join(altered)} was altered while the first copy was about to begin",
                    where=self._source.label,
                    do="the copy begins anew",
                )

        context = CopyContext(
            process=state.name,
            epoch=state.epoch,
            source=self._source.access,
            target=self._target.access,
            source_tables={name: existing[name] for name in copyable},
            target_tables={name: TargetTable(at_target[name]) for name in copyable},
            adopted=frozenset(ledger.with_rows([name for name in ledger.adopted() if name in at_target])),
            on_bad_row=self._apply.on_bad_row,
        )
        jobs = SparkChunkJobs(spark, context)
        Instantiator(
            origin,
            ledger,
            jobs,
            listener,
            confirm=confirm,
            copies=self._apply.first_copy,
            leave_out=leave_out,
        ).run(copyable, stop)
        # Changes made before a table was dropped or renamed are of its earlier name.
        return {*captured, *copied, *to_come}

    def _copy_fault(self, source: TableSchema, target: TableSchema | None) -> OperatorError | None:
        """What keeps a table from being copied, as far as the catalogues say."""
        if target is None:
            return OperatorError(
                f"missing at the target: {source.name}",
                where=self._target.label,
                do="made or renamed at the source after setup; run `penstock setup`, which makes what is missing here",
            )
        try:
            check_columns(source, target, where=self._target.label)
        except OperatorError as exc:
            return exc
        return None


def _held(ledger: TargetLedger, stream: Source) -> ProcessState | None:
    """Return where the process stands, once it is sure that the source has the history it follows.

    Raises:
        OperatorError: It has another one.
    """
    while True:
        state = ledger.state()
        try:
            if state is not None:
                stream.hold_against(state.history)
        except OperatorError:
            # A run that is at work has the log freed up to where it stands, which is read a moment earlier.
            if ledger.state() == state:
                raise
        else:
            return state


def _low_watermark(ledger: TargetLedger) -> Scn:
    state = ledger.state()
    return state.low_watermark if state is not None else START
