"""What one run of a pipeline that applies consists of: its feed and apply process ask it, others work beside them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from penstock.apply.lane import ServerConfig
from penstock.apply.ledger import ProcessState, ProcessStatus
from penstock.apply.listener import RunListener
from penstock.apply.parameters import Parameters
from penstock.apply.retry_policy import RetryPolicy
from penstock.apply.settings_shown import settings_shown
from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.pipeline.capturing import Capturing
from penstock.pipeline.connectors import PipelineEnds, TargetLedger
from penstock.pipeline.control import Control
from penstock.pipeline.first_copy import FirstCopy
from penstock.pipeline.lacking import Lacking
from penstock.pipeline.left_out import LeftOut
from penstock.pipeline.new_parts import NewParts
from penstock.pipeline.post_data import PostDataWork
from penstock.pipeline.process_state import low_watermark
from penstock.pipeline.replay import Replay, refuse_before_copies
from penstock.pipeline.running import CopyWatch
from penstock.pipeline.settings_check import SettingsCheck
from penstock.pipeline.trimming import Trimming
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.spark.starting import Spark
from penstock.stream import Source
from penstock.text import count


@dataclass
class ApplyRun:
    """A run, from the moment it has the ledger until it ends.

    Its feed (`pipeline.feed.SparkFeed`) asks it what the source and the target are; its apply process
    (`apply.process.ApplyProcess`) has it prepare, and asks it how to work.

    Attributes:
        lacking: Reports what the target lacks.
        parts: Makes partitions and enum labels that changes need; None where the source has no tables.
        until: The run ends behind the last transaction at or before this position.
        left_out: Tables that the run goes on without.
    """

    pipeline: Capturing
    ends: PipelineEnds
    spark: Spark
    ledger: TargetLedger
    listener: RunListener
    retry_policy: RetryPolicy
    control: Control
    lacking: Lacking
    parts: NewParts | None
    until: Scn | None
    left_out: LeftOut = field(init=False)

    def __post_init__(self) -> None:
        """Prepare; nothing is opened yet."""
        target, listener = self.ends.target, self.listener
        self.left_out = LeftOut(listener.warned)
        self._copies = CopyWatch(listener, self.retry_policy)
        self._trimming = Trimming(self.ledger, self.ends.apply.conflict_log_kept)
        self._replay: Replay | None = None
        if self.ends.recording is not None:
            self._replay = Replay(self.ends.recording, target, self.is_meant, self.ends.apply.on_bad_row)
        self._post_data: PostDataWork | None = None
        if self.ends.database is not None:
            self._post_data = PostDataWork(self.ends.database, target, listener.warned)

    def open_source(self) -> Source:
        """Open what the driver follows changes by."""
        return self.ends.source.open_source()

    def follow_source(self) -> None:
        """Bring the capture up to date after DDL; raises where the user has to act first."""
        self.pipeline.follow(self.listener)

    def follow_parts(self) -> bool:
        """Make partitions and the like that changes need; returns whether some were made."""
        return self.parts is not None and self.parts.follow(self.listener)

    def is_meant(self, table: TableName) -> bool:
        """Whether the pipeline is about a table; the capture set may serve other pipelines too."""
        return self.pipeline.is_meant(table)

    def check_copies(self, position: Scn) -> Scn | None:
        """Raise TablesAddedError where tables are to be copied at a position before changes follow.

        Returns:
            The next such position, if one is known.
        """
        return self._replay.check(position) if self._replay is not None else None

    def tell_lacking(self, followed: Iterable[TableName], at_target: Mapping[TableName, TableSchema]) -> bool:
        """Report what the target lacks of the tables that are followed; returns whether it lacks columns or tables."""
        return self.lacking.tell(followed, at_target, self.listener)

    def prepare(self, state: ProcessState, stop: threading.Event) -> Collection[TableName]:
        """Copy what is not copied yet; returns the tables that changes are applied to."""
        apply = self.ends.apply
        self.ledger.note_settings(
            settings_shown(
                tag=apply.tag,
                parameters=apply.parameters,
                keys=apply.keys,
                conflicts=apply.conflict_rules,
                handlers=self.ends.config.handlers,
                virtual=apply.dependencies.virtual,
            )
        )
        self.left_out.begin_anew()
        if self._replay is not None:
            return self._replay.prepare(self.spark, self.ledger, state, stop, self._copies)
        database = self.ends.database
        assert database is not None, "a source has tables or copies of them"
        copy = FirstCopy(self.pipeline, self.ends, database, self.ledger, self.left_out, self.until)
        captured = copy.make(self.spark, state, stop, self._copies)
        assert self._post_data is not None
        self._post_data.begin(self.ledger.instantiated())
        return captured

    def parameters(self) -> Parameters:
        """Return how the process works now, before each batch; trims the conflict log now and then."""
        self._trimming.look()
        return self.control.parameters_in(self.ledger)

    def server_config(self, parameters: Parameters, errors: int) -> ServerConfig:
        """Return how apply servers work by these parameters, after so many errors of this run."""
        apply, most = self.ends.apply, parameters.max_errors
        return ServerConfig(
            disable_on_error=parameters.disable_on_error,
            max_errors=None if most is None else max(1, most - errors),
            allow_duplicate_rows=parameters.allow_duplicate_rows,
            ignored=parameters.ignore_transaction,
            conflicts=apply.conflict_rules,
            handlers=self.ends.config.handlers,
            hold_dependents=apply.hold_dependents,
            ddl=apply.ddl_rules,
        )

    def end(self, *, is_hurried: bool) -> None:
        """End what works beside the run; building post-data is given up where the run is in a hurry."""
        if self._post_data is not None:
            self._post_data.end(is_hurried=is_hurried)
        if self.parts is not None:
            self.parts.close()


def check_target(
    ends: PipelineEnds, check: SettingsCheck, control: Control, listener: RunListener, stop: threading.Event
) -> None:
    """Make sure that a run can apply at the target, once another run that is at work has ended.

    Raises:
        OperatorError: Setup was not run, settings do not fit the tables, or another run goes on.
    """
    ends.target.check()
    for fault in check.named():
        raise fault
    for error in ends.config.handlers.check():
        raise error
    if ends.apply.tables:
        tables = ends.source.match(ends.config.capture.tables)
        faults = check.of_tables(ends.source.describe(tables))
        if faults:
            raise OperatorError("\n".join(map(str, faults)))
    with closing(ends.target.ledger()) as ledger:
        control.wait_for_other(ledger, stop)
        if stop.is_set():
            return
        ledger.ask_to_stop(None)
        state = ledger.state()
        if state is not None and state.status is ProcessStatus.ABORTED and state.error is not None:
            listener.warned(f"the last run stopped at the first error ({state.error}); this one goes on behind it")
        if state is not None and state.errors:
            held = f"the error queue holds {count(state.errors, 'transaction')}"
            listener.warned(f"{held}; `penstock errors list` says why")


def end_of_run(ends: PipelineEnds, until: str, listener: RunListener) -> Scn:
    """Find the point that a run is to end at.

    Raises:
        OperatorError: The target is behind it already, or cannot be made whole as of that point.
    """
    end = ends.source.position_of(until, option="--until")
    with closing(ends.target.ledger()) as ledger:
        reached = max([low_watermark(ledger), *ledger.instantiated().values()])
    if reached > end:
        raise OperatorError(
            f"--until {until} is position {end}, and the target is at position {reached} already",
            where=ends.target.label,
            do="name a later point; an earlier one is restored to a database that holds nothing of the pipeline",
        )
    if ends.recording is not None:
        tables = ends.source.match(ends.config.capture.tables)
        first = ends.recording.first_copies(tables)
        refuse_before_copies(first, tables, end, listener.warned, where=ends.source.label)
    return end
