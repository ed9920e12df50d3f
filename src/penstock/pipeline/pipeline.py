"""A pipeline that applies: one method for each command, for the command line and for any program.

Where a command takes more than a few lines, a module of its name has them: `setup_plan`, `verification`, `resync`,
`switch`, `cutover`, `control` (`penstock apply`), and `apply_run` with what works beside a run. `Capturing` has what a
pipeline that publishes can, too: its `run` is the run of both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Unpack

from penstock.apply.conflict_log import ConflictFilter, LoggedConflict
from penstock.apply.ddl import DdlPolicy
from penstock.apply.detail import Detail, QueuedCount
from penstock.apply.ledger import ProcessState
from penstock.apply.listener import RunListener
from penstock.apply.parameters import Parameters
from penstock.apply.process import CAUGHT_UP, ApplyProcess
from penstock.apply.progress import Progress
from penstock.apply.retry import Retried, RetryConfig, RetryOptions, go_on, in_commit_order, retry
from penstock.apply.retry_policy import RetryPolicy
from penstock.change import TableName
from penstock.config import PipelineConfig
from penstock.config.limits import retry_limit
from penstock.database import DatabasePlan, Emptying, SetupStep, Uncaptured
from penstock.dialects.sessions import LockWatch
from penstock.errors import HandlerError, OperatorError, PenstockError, RetryableError
from penstock.history import Consumer, HistoryError, LogHold
from penstock.pipeline import resync
from penstock.pipeline.apply_run import ApplyRun, check_target, end_of_run
from penstock.pipeline.capturing import Capturing
from penstock.pipeline.connectors import (
    EventSource,
    PipelineEnds,
    SourceConnector,
    TargetConnector,
    TargetLedger,
    database_of,
)
from penstock.pipeline.control import Control
from penstock.pipeline.cutover import Cutover, CutoverPipeline, cutover
from penstock.pipeline.errors import Errors
from penstock.pipeline.feed import SparkFeed
from penstock.pipeline.lacking import Lacking
from penstock.pipeline.locks import Holders
from penstock.pipeline.log_watch import held_too_much
from penstock.pipeline.new_parts import NewParts
from penstock.pipeline.new_tables import NewTables
from penstock.pipeline.plan import Plan
from penstock.pipeline.process_state import held_state
from penstock.pipeline.report import VerifyReport
from penstock.pipeline.resync import Resync
from penstock.pipeline.running import not_for_ever
from penstock.pipeline.settings_check import SettingsCheck
from penstock.pipeline.setup_plan import SetupPlanner
from penstock.pipeline.status import SourceState, Status, not_set_up, status_of
from penstock.pipeline.steps import carry_out, nothing_to_set_up
from penstock.pipeline.switch import Switched, switch
from penstock.pipeline.transformed import untransformed
from penstock.pipeline.verification import Verification
from penstock.position import START, Scn
from penstock.rules.ruleset import RuleSet
from penstock.spark.job import for_each
from penstock.spark.starting import Spark
from penstock.stream import given_up
from penstock.verify.driver import VerifyListener, VerifyResult
from penstock.verify.task import not_copied

MOST_QUEUED_COUNTS = 1000
"""A queue that holds more kinds of errors is a storm, and what counts kinds is to stay small."""


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
        self._target = target
        self._ends = PipelineEnds(config, source, target)
        self._control = Control(config.name, target, config.apply.parameters)
        self._check = SettingsCheck(self._ends)
        self._planner = SetupPlanner(self._ends, self._check)
        self._lacking = Lacking(self._ends)
        self._new_tables = NewTables(self._ends, self._set_up_new)

    @property
    def places(self) -> Mapping[str, str]:
        """The source and the target."""
        return {"source": self._source.label, "target": self._target.label}

    def plan(self, *, adopt: bool = False) -> Plan:
        """Work out what `setup` would do. Changes nothing."""
        plan = self._planner.plan(adopt=adopt, capture_fault=self.set_fault)
        return replace(plan, refused=self._parted()) if plan.is_possible else plan

    def table_faults(self) -> Mapping[TableName, Sequence[PenstockError]]:
        """What keeps single tables from being set up, by their names at the target, except missing privileges."""
        return self._planner.table_faults()

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

    def status(self, log_hold: Callable[[], LogHold] | None = None) -> Status:
        """Say where the pipeline stands; while the source is out of reach, as far as the ledger knows."""
        if not self._target.has_ledger():
            return not_set_up(self.config.name)
        with closing(self._target.ledger()) as ledger:
            try:
                return self._status(ledger, log_hold or self.log_hold)
            except RetryableError as exc:
                # Where it is the target that went, what follows says so.
                process, copied = ledger.state(), ledger.instantiated()
                if process is None:
                    raise
                return status_of(
                    self.config.name,
                    process,
                    SourceState(lost=str(exc)),
                    is_running=ledger.is_running(),
                    copied=list(copied.values()),
                )

    def _status(self, ledger: TargetLedger, log_hold: Callable[[], LogHold]) -> Status:
        if not self._source.has_capture():
            return not_set_up(self.config.name)
        with closing(self._source.open_source()) as stream:
            refused = None
            try:
                process = held_state(ledger, stream)
            except OperatorError as exc:
                process, refused = ledger.state(), str(exc)
            copied, hold = ledger.instantiated(), log_hold()
            versions = stream.tables()
            followed = set(self.followed(versions, copied)) - given_up(versions, copied)
            return status_of(
                self.config.name,
                process,
                SourceState(
                    stream.backlog(process.low_watermark if process else START),
                    hold,
                    waiting=sorted(followed - set(copied)),
                    refused=refused,
                    attention=[
                        str(one)
                        for one in (
                            *self._lacking.of(followed & set(copied)),
                            *self.not_captured(),
                            *held_too_much(hold, self.config.capture.log),
                            *hold.attention,
                        )
                    ],
                ),
                is_running=ledger.is_running(),
                copied=[copied[name] for name in followed if name in copied],
            )

    def detail(self) -> Detail | None:
        """Say what the ledger knows beyond `status`, by apply server and by table; None before setup."""
        if not self._target.has_ledger():
            return None
        with closing(self._target.ledger()) as ledger:
            return ledger.detail()

    def queued_counts(self) -> Sequence[QueuedCount]:
        """Count the error queue by table, error and state, the most frequent first; nothing before setup."""
        if not self._target.has_ledger():
            return ()
        with closing(self._target.ledger()) as ledger:
            return ledger.queued_counts(MOST_QUEUED_COUNTS)

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
            repair: Bring the rows that differ; see `verify.driver.verify`.

        Raises:
            OperatorError: Nothing is set up, none of the tables can be compared, a pattern means no table of the
                pipeline, or the target refuses a row that is brought. Where only some of the tables cannot be
                compared, the result names them.
            RetryableError: What was captured was not applied in time.
        """
        listener = listener or VerifyReport()
        database = database_of(self._source)
        if not self._ends.are_set_up():
            raise OperatorError("there is nothing to compare yet", do="run `penstock setup`, then `penstock run`")
        with (
            self._told_of_locks(lambda wait: listener.warned(str(wait))),
            closing(self._target.ledger()) as ledger,
            closing(self._source.open_source()) as stream,
        ):
            verification = Verification(self, self._ends, database, ledger, stream)
            return verification.run(self._spark, listener, tables, repair=repair)

    def errors(self) -> Errors:
        """Open the error queue."""
        return Errors(self._ends.error_queue(), self.origins, self._apply.keys)

    def retry(
        self,
        entry_ids: Sequence[str],
        tell: Callable[[str], None] = lambda _: None,
        *,
        skip_gone: bool = False,
        **options: Unpack[RetryOptions],
    ) -> Iterator[Retried]:
        """Apply entries of the error queue again, in commit order, one by one as they are asked for.

        See `apply.retry.retry`, and `apply.retry.RetryConfig` for the options.

        Args:
            skip_gone: The ids were read from the queue: one that is not there any more is yielded as gone.

        Raises:
            NoEntryError: There is no entry of one of these names; then nothing is applied.
        """
        config = replace(
            self._retry_config,
            edit=options.get("mend"),
            as_me=options.get("as_me", False),
            role=options.get("role"),
            go_on=options.get("go_on", False),
            dry_run=options.get("dry_run", False),
        )
        for fault in self.config.handlers.check():
            raise fault
        queue = self._ends.error_queue()
        with self._told_of_locks(lambda wait: tell(str(wait))):
            yield from retry(queue, in_commit_order(queue, entry_ids, skip_gone=skip_gone), config, tell=tell)

    def go_on(self, tell: Callable[[str], None] = lambda _: None) -> Iterator[Retried]:
        """Apply what has waited in the error queue, and waits for nothing any more; see `apply.retry.go_on`."""
        with self._told_of_locks(lambda wait: tell(str(wait))):
            yield from go_on(self._ends.error_queue(), self._retry_config, tell=tell)

    @property
    def _retry_config(self) -> RetryConfig:
        return RetryConfig(
            allow_duplicate_rows=self.parameters().allow_duplicate_rows,
            keys=self._apply.keys,
            conflicts=self._apply.conflict_rules,
            handlers=self.config.handlers,
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
            self._ends, after._ends, lambda: self.run(stop, listener, until_caught_up=True), stop, wait_s=wait_s
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
        if not self._ends.are_set_up():
            do = "run `penstock setup`, then `penstock run`"
            raise OperatorError("there is no copy yet", where=self._target.label, do=do)
        with closing(self._target.ledger()) as ledger, closing(self._source.open_source()) as stream:
            held_state(ledger, stream)
            copied = ledger.instantiated()
            versions = stream.tables()
            followed = sorted(self.followed(versions, copied) - given_up(versions, copied))
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
            CutoverPipeline(
                self._source,
                self._target,
                sorted(self._source.describe(followed)),
                [str(found) for found in self.not_captured()],
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
        apply, spark = self._apply, self._spark
        retry_policy = RetryPolicy(retry_limit(apply.retry_s), stop, listener)
        retry_policy.insist(lambda: self._check_capture(listener))
        retry_policy.insist(lambda: check_target(self._ends, self._check, self._control, listener, stop))
        end = None if until is None else end_of_run(self._ends, until, listener)
        if stop.is_set():
            return Progress(START)
        events = untransformed(self._source)
        if isinstance(events, EventSource):
            events.look_in(partial(for_each, spark))
        with closing(self._target.ledger()) as ledger:
            run = ApplyRun(
                self,
                self._ends,
                spark,
                ledger,
                listener,
                retry_policy,
                control=self._control,
                lacking=self._lacking,
                parts=self._new_parts(),
                until=end,
            )
            feed = SparkFeed(spark, run)

            def parameters() -> Parameters:
                found = run.parameters()
                feed.use(run.server_config(found, process.errors))
                return found

            process = ApplyProcess(
                feed=feed,
                ledger=ledger,
                prepare=run.prepare,
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
                progress.left_out = self._without(run.left_out)
                return progress
            finally:
                run.end(is_hurried=not is_finished)

    def _set_status(self, error: PenstockError) -> None:
        # The ledger may be out of reach, or another role's: then there is nowhere to note it. And whatever goes wrong
        # here, the error that ended the run is the one to be raised.
        with suppress(Exception):
            if self._target.has_ledger():
                with closing(self._target.ledger()) as ledger:
                    ledger.set_status_of_last_run(str(error), is_aborted=isinstance(error, HandlerError))

    def _was_down(self) -> bool:
        # Where the ledger cannot be asked, the run is about to say so itself.
        with suppress(PenstockError):
            if self._target.has_ledger():
                with closing(self._target.ledger()) as ledger:
                    state = ledger.state()
                return state is not None and state.reason not in (None, CAUGHT_UP)
        return False

    def _lock_watches(self) -> list[LockWatch]:
        return [*super()._lock_watches(), self._target.lock_watch()]

    def _carry_out(self, plan: Plan, *, printer: str) -> Mapping[TableName, Sequence[PenstockError]]:
        """Take the steps of a plan; returns the tables that were left out, see `steps.carry_out`."""
        with closing(Holders(self._lock_watches())) as holders:
            installed = self._installed
            source = installed.setup(printer=printer) if installed is not None else nothing_to_set_up()
            return carry_out(plan, self._target.setup(printer=printer), source, holders)

    def _consumer(self) -> Consumer:
        with closing(self._target.ledger()) as ledger:
            return ledger.consumer()

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
        return self._planner.plan_of_new(tables).in_the_way

    def _new_parts(self) -> NewParts | None:
        database = self._ends.database
        if database is None:
            return None

        def carry_out(plan: DatabasePlan) -> None:
            whole = Plan([], DatabasePlan(self._source.label), plan)
            whole.with_left_out(self._carry_out(whole, printer="plan"))

        patterns, rules = self.config.capture.tables, self._apply.ddl_rules
        return NewParts(database, self._target, patterns, rules, carry_out)

    def _set_up_new(self, tables: Sequence[TableName]) -> None:
        plan = self._planner.plan_of_new(tables).without_bad_tables()
        plan.refuse_impossible()
        plan.with_left_out(self._carry_out(plan, printer="plan")).refuse_left_out()

    def _parted(self) -> str | None:
        """Why source and target are not of one history; None where they are, or where that cannot be told yet."""
        if self._installed is None:
            return None
        # What else keeps the two from being asked is told as a fault, or put in order by setup.
        with suppress(OperatorError):
            if not self._ends.are_set_up():
                return None
            with closing(self._target.ledger()) as ledger, closing(self._source.open_source()) as stream:
                try:
                    held_state(ledger, stream)
                except HistoryError as exc:
                    return str(exc)
        return None
