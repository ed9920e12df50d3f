"""The two ends of a pipeline: a `SourceConnector` captures, a `TargetConnector` receives.

A dialect implements `PlainDatabase` and `TargetConnector`, a source without a database `SourceWithCopies`;
`wiring` picks the classes. These are the capabilities of sources:

- `Installable`: setup installs capture in it, and it keeps changes for those that follow it.
- `DatabaseSource`: it also has the tables, so they can be copied, compared and cut over. `PlainDatabase` is one that
  is not seen through rules.
- `SourceWithCopies`: it holds copies of its tables beside their changes.
- `EventSource`: such a source that goes on where capture in the database itself was left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, runtime_checkable

from penstock.apply.conflict_log import ConflictFilter, LoggedConflict
from penstock.apply.detail import Detail, QueuedCount
from penstock.apply.error_queue import ErrorQueue
from penstock.apply.handlers.statement import Statement
from penstock.apply.ledger import ProcessState, RunPlace, StopRequest
from penstock.apply.process import Ledger
from penstock.apply.table_counts import TableOp
from penstock.apply.target import Unfollowed
from penstock.change import TableName
from penstock.config import PipelineConfig
from penstock.config.apply import ApplyConfig, TriggerFiring
from penstock.database import (
    CaptureBehind,
    DatabasePlan,
    Emptying,
    MissingPart,
    NativeForm,
    NotCompared,
    Renamed,
    SetupStep,
    SourceTables,
    Uncaptured,
    UncopiedRows,
)
from penstock.dialects.sessions import HoldWatch, LockWatch, PostDataBuilder, SequenceReader, SetupSession, WriteFreeze
from penstock.errors import OperatorError
from penstock.history import CaptureOrigin, Consumer, History, HistoryError, LogHold
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.snapshot.instantiate import CopyLedger, CopyOrigin
from penstock.snapshot.task import SourceAccess, TargetAccess
from penstock.source_switch import Mark, SwitchPosition, SwitchSource
from penstock.stream import Source, StoredCopy, TableVersion
from penstock.verify.task import ComparedSource, ComparedTarget

COMPARE_EXTERNAL = (
    "compare the target with the database that the changes are from, by `penstock verify` of a pipeline that captures"
    " there"
)


class RunLock(Protocol):
    """What one run at a time holds; one whose process or machine is lost lets go of it. A connection is one."""

    def close(self) -> None:
        """Let go of it."""


InTasks: TypeAlias = Callable[[Sequence[Any], Callable[[Any], Any]], Sequence[Any]]
"""Does something with each of several items where tasks run; returns the results in the order of the items."""


class SourceConnector(Protocol):
    """Where changes come from: what every source can."""

    @property
    def label(self) -> str:
        """The source, named without secrets."""

    @property
    def access(self) -> SourceAccess:
        """How tasks reach it."""

    def match(self, patterns: Sequence[str]) -> Sequence[TableName]:
        """Return the tables that patterns mean."""

    def describe(self, tables: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Describe tables as they are now."""

    def explain(self, tables: Sequence[TableName]) -> Sequence[str]:
        """Say what rules make of tables, a line for each that they concern."""

    def plan(self, tables: Sequence[TableName], row_triggers: Sequence[str]) -> DatabasePlan:
        """Plan the capture of tables; those that a pattern of `row_triggers` means by row triggers."""

    def blueprint(self, tables: Sequence[TableName], *, types_of: Sequence[TableName] = ()) -> NativeForm | None:
        """Say how to make tables exactly like these in a database of the source's kind; None without a database.

        Of `types_of` only the types are made that their columns are of.
        """

    def has_capture(self) -> bool:
        """Whether there is anything yet that changes could be read from."""

    def open_source(self) -> Source:
        """Open what the driver follows changes by."""

    def position_of(self, text: str, *, option: str) -> Scn:
        """Read the point that a person gave for an option, and find its position.

        Raises:
            ConfigError: The text is of another form.
            OperatorError: The source has not been so far.
        """


@runtime_checkable
class Installable(SourceConnector, Protocol):
    """A source in which capture is installed, and which keeps changes for those that follow it."""

    def lock_watch(self) -> LockWatch:
        """Return a watch that finds our sessions that wait for a lock here."""

    def parts(self, patterns: Sequence[str], leaves_out: Callable[[TableName], bool] = lambda _: False) -> NativeForm:
        """What the tables that patterns mean have gained without their definition changing: partitions, labels."""

    def setup(self, *, printer: str = "plan") -> AbstractContextManager[SetupSession]:
        """Open a session for setup or teardown.

        `printer` is the command that prints the steps for somebody with more rights.
        """

    def removal(self, consumer: Consumer, *, is_given_up: bool = False) -> DatabasePlan:
        """Plan to remove a consumer, and what setup made with the last one; no steps when there is nothing.

        Args:
            is_given_up: Only the consumer's place is lost: what setup made stays while anybody reads there.
        """

    def release(self, consumer: Consumer) -> Sequence[SetupStep]:
        """The steps after which a process may join the log anew; a set that was copied here is removed whole."""

    def remove_consumer(self, id_: str) -> None:
        """Keep the log for a consumer no more."""

    def log_hold(self, older: timedelta) -> LogHold:
        """Say what disk the log takes, and for whom; looks at all of the log.

        Args:
            older: Name transactions that are open for longer than this.
        """

    def hold_watch(self) -> HoldWatch | None:
        """Return a watch that looks at the same while a run goes on; None where no log is kept for anybody."""

    def history_fault(self, followed: History | None = None) -> HistoryError | None:
        """Return what is wrong with the set as a whole: it was copied here, or the process has followed another one."""

    def other_pipeline(self, origin: CaptureOrigin) -> str | None:
        """Return the name of the pipeline whose set an origin is; None if it is this one, or not in this database."""

    def lock_run(self, consumer: str, *, wait_s: float) -> RunLock | None:
        """Become the one run of a consumer of the source; None where another run is it after so many seconds."""

    def identity(self) -> str:
        """Return an id that is unique to this database while its server runs."""

    def replaced_tables(self) -> Sequence[TableName]:
        """Tables that were made anew under a captured name, and are not captured yet."""

    def follow(self) -> Sequence[CaptureBehind]:
        """Build the capture anew of altered tables; returns those of which the user has to change something first."""

    def not_captured(self, patterns: Sequence[str]) -> Sequence[Uncaptured]:
        """Tables that patterns mean, and whose changes are not captured, with the reason."""


@runtime_checkable
class DatabaseSource(Installable, Protocol):
    """A database that changes are captured from, perhaps as rules make it: it has the tables themselves."""

    def origin(self) -> CopyOrigin:
        """Return the source of a first copy, of the tables as they are now."""

    def compared(self) -> ComparedSource:
        """Return the source of a comparison, by its own names; the target may be a database of another kind."""

    def beside(self, tables: Iterable[TableName]) -> NativeForm:
        """Describe what rows of tables may refer to and no table holds, such as large objects."""

    def post_data(self, tables: Sequence[TableName]) -> NativeForm:
        """Describe the defaults, checks, indexes, sequences and comments that the target's tables are to have."""

    def sequence_reader(self, post_data: NativeForm) -> SequenceReader:
        """Return a reader of the sequences that `post_data` names."""

    def write_freeze(self, tables: Sequence[TableName]) -> WriteFreeze:
        """Return a watch on writers to the tables of this source that become `tables`."""

    def copies_asked(self) -> Mapping[int, int]:
        """Return the source's own numbers of tables that it asks to be copied anew, and which time of asking it is."""

    def forget_asked(self, asked: Mapping[int, int]) -> None:
        """Note that a run knows what `copies_asked` has returned."""

    def marks_of_ddl(self) -> AbstractContextManager[Callable[[], object]]:
        """Open a session that returns another value at each call after partitions, labels or keys were made."""


@runtime_checkable
class PlainDatabase(DatabaseSource, Protocol):
    """A database itself, which a dialect implements; rules can make another `DatabaseSource` of it.

    Another way of capturing from it can go on where this one is left: this one names its transactions as the
    database's own log does.
    """

    def post_data_as(self, tables: Sequence[Renamed]) -> NativeForm:
        """Return `post_data` by the names that tables and columns get."""

    def mark(self) -> Mark:
        """Commit a transaction that changes no row."""

    def hand_over(self, position: Scn, first: Mark) -> SwitchSource:
        """Return the transactions at or before a position; `first`, a marked one, is among them."""


@runtime_checkable
class SourceWithCopies(SourceConnector, Protocol):
    """A source that holds copies of its tables beside its changes, each as of a position."""

    def copies_at(self, tables: Collection[TableName], position: Scn) -> Sequence[StoredCopy]:
        """Return the newest whole copy of each table at or before a position, oldest first.

        A table that is known to be gone by then, as one that has another name, has none.
        """

    def first_copies(self, tables: Collection[TableName]) -> Mapping[TableName, Scn]:
        """Return the position from which on the source has the rows of each table; those without are left out."""

    def stored(self, copy: StoredCopy, stop: threading.Event) -> CopyOrigin:
        """What a copy is read from, once all of it is there.

        Raises:
            RetryableError: Told to stop before that.
        """


@runtime_checkable
class EventSource(SourceWithCopies, Protocol):
    """Events that another product captures from a database, such as those of a Debezium connector, which is the one.

    It can go on where another way of capturing from the same database is left.
    """

    def place(self) -> CaptureOrigin:
        """Return the origin that the ledger records for a process that follows this source."""

    def has_snapshot(self) -> bool:
        """Whether there are rows of a snapshot that a first copy can be made of."""

    def take_over(self, left: SwitchSource, *, wait_s: float) -> SwitchPosition:
        """Find the point where another source was left.

        Raises:
            OperatorError: That point lies before the first event, or no event tells of a transaction of ours in time.
        """

    def look_in(self, tasks: InTasks) -> None:
        """Have tasks look through what lies ahead from now on, where it is much."""


def database_of(source: SourceConnector) -> DatabaseSource:
    """Return the source as one whose tables can be compared.

    Raises:
        OperatorError: It has no tables.
    """
    if not isinstance(source, DatabaseSource):
        raise OperatorError(
            "there are no tables to compare with, only changes that were captured from them",
            where=source.label,
            do=COMPARE_EXTERNAL,
        )
    return source


class TargetLedger(Ledger, CopyLedger, Protocol):
    """The ledger of the pipeline's apply process; a dialect, which cannot import this module, has it."""

    def save_dictionary(self, versions: Iterable[TableVersion]) -> None:
        """Keep table versions."""

    def unfollowed(self) -> Mapping[TableName, tuple[Unfollowed, ...]]:
        """Return the alterations that wait in the error queue, after which names mean other columns, by table."""

    def refuse_second(self) -> None:
        """Raise an `OperatorError` if a run of the process is alive already."""

    def state(self) -> ProcessState | None:
        """Return where the process stands; None when it was never started."""

    def is_running(self) -> bool:
        """Whether a run of the process is alive somewhere."""

    def run_place(self) -> RunPlace | None:
        """Where the run of the process is; None where there is none, or nobody can tell."""

    def parameters(self) -> Mapping[str, str]:
        """Return the texts of the parameters that were set, by name; see `apply.parameters`."""

    def set_parameter(self, name: str, value: str | None) -> None:
        """Keep the text of a parameter; None forgets it."""

    def note_settings(self, shown: Mapping[str, Any]) -> None:
        """Write down what the file of this run says, as `apply.settings_shown` has it."""

    def conflicts(self, wanted: ConflictFilter) -> Sequence[LoggedConflict]:
        """Return entries of the conflict log, the newest first."""

    def trim_conflicts(self, keep: timedelta) -> None:
        """Delete entries of the conflict log that are older."""

    def queued_counts(self, most: int) -> Sequence[QueuedCount]:
        """Count the error queue by table, error and state; the `most` frequent ones."""

    def table_changes(self) -> Mapping[TableOp, int]:
        """Return how many changes runs have applied, by table and operation; a partition's are its table's."""

    def detail(self) -> Detail:
        """Return what the ledger tells beyond `state`."""

    def ask_to_stop(self, request: StopRequest | None) -> None:
        """Ask the run of the process to stop; None takes it back."""

    def stop_request(self) -> StopRequest | None:
        """Return how the run is asked to stop, if it is."""

    def set_status_of_cut_run(self, reason: str) -> None:
        """Write down that the last run was cut short, unless one is alive, and end what is left of its sessions."""

    def set_status_of_last_run(self, reason: str, *, is_aborted: bool = False) -> None:
        """Write down why the last run stopped, unless one is alive; `is_aborted`: at what keeps any from working."""

    def consumer(self) -> Consumer:
        """What the source knows this process by."""

    def note_brought(self, tables: Sequence[TableName], scn: Scn) -> None:
        """Write down that tables hold whatever the source had at a position: no earlier change has to be retried."""

    def copied_from(self) -> Mapping[TableName, str]:
        """Return the tables whose copy is complete or begun, and the text of the snapshot that each is as of."""

    def copied_by_others(self, tables: Sequence[TableName]) -> Mapping[TableName, str]:
        """Return those of the tables that other processes have copied, too, and one of these."""

    def plan_emptying(self) -> Emptying:
        """Work out what a new first copy does away with. Changes nothing."""

    def empty_and_forget(self) -> Emptying:
        """Empty the tables that a new first copy has to find empty, and forget what was copied and applied."""

    def switch(self, source: str, found: SwitchPosition) -> None:
        """Follow another source of the same database, of this name, from now on; the rows stay, and are its copy."""


class TargetConnector(Protocol):
    """The database that changes are applied to; a dialect, which cannot import this module, implements it."""

    def statement_faults(self, statements: Sequence[tuple[TableName, Statement]]) -> Sequence[str | None]:
        """Say of each statement of a table's handlers why it cannot be run here as it is now; None where it can."""

    @property
    def label(self) -> str:
        """The database, named without secrets."""

    @property
    def access(self) -> TargetAccess:
        """How tasks reach it."""

    def identity(self) -> str:
        """Return an id that is unique to this database while its server runs."""

    def lock_watch(self) -> LockWatch:
        """Return a watch that finds our sessions that wait for a lock here."""

    def plan(
        self,
        tables: SourceTables,
        *,
        uncopied_rows: UncopiedRows,
        firing: Mapping[str, Mapping[str, TriggerFiring]] | None = None,
        keyed: Collection[TableName] = (),
    ) -> DatabasePlan:
        """Plan the ledger and the missing tables; check those that exist.

        A missing table that the blueprint does not say how to make is made from its description: each column by its
        logical type. So are all of them where the blueprint is of another kind of database; and so is a foreign key
        whose parent has another name there. Post-data are made for tables that setup makes, or has made.

        Args:
            firing: For whose changes triggers fire: by table, then by name.
            keyed: Tables that have a substitute key, and need none of their own.
        """

    def post_data_builder(self, post_data: NativeForm) -> PostDataBuilder:
        """Return what makes what tables lack of `post_data`; nothing if they are of another kind of database."""

    def describe(self, tables: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Describe tables as they are now."""

    def tables_like(self, patterns: Sequence[str]) -> Mapping[TableName, TableSchema]:
        """Describe the tables that patterns mean, as they are now; no partitions."""

    def compared(self) -> ComparedTarget:
        """The target of a comparison."""

    def unseen(self, source: NativeForm, *, of_all: bool) -> Sequence[NotCompared]:
        """Say what of that which lies beside the source's tables a comparison of rows does not see.

        Nothing if it is of another kind of database; without `of_all`, or if no row of the tables may refer to it.
        """

    def setup(self, *, printer: str = "plan") -> AbstractContextManager[SetupSession]:
        """Open a session for setup or teardown.

        `printer` is the command that prints the steps for somebody with more rights.
        """

    def removal(self) -> DatabasePlan:
        """Plan to remove what setup made for this pipeline, but no table that holds data.

        Raises:
            OperatorError: The process is running, its error queue holds transactions, or a later version of
                Penstock made the ledger.
        """

    def lacking(self, parts: NativeForm) -> Sequence[MissingPart]:
        """Return what is missing here of the source's partitions and enum labels; nothing if it is of another kind."""

    def plan_parts(self, blueprint: NativeForm | None, tables: Sequence[TableName]) -> DatabasePlan:
        """Plan what tables lack here of the source's partitions and enum labels, and nothing else."""

    def has_ledger(self) -> bool:
        """Whether setup has made a ledger here.

        Raises:
            OperatorError: It is of another version than this program works with, or another role could put code there.
        """

    def ledger(self) -> TargetLedger:
        """Open the ledger."""

    def error_queue(self) -> ErrorQueue:
        """Open the error queue."""

    def check(self) -> None:
        """Make sure that changes can be applied here at all.

        Raises:
            OperatorError: Setup was not run, or a privilege is missing.
        """


@dataclass(frozen=True)
class PipelineEnds:
    """A pipeline file that applies, and the connectors at its two ends."""

    config: PipelineConfig
    source: SourceConnector
    target: TargetConnector

    @property
    def apply(self) -> ApplyConfig:
        """The `apply` part of the file."""
        assert self.config.apply is not None
        return self.config.apply

    @property
    def installed(self) -> Installable | None:
        """The source, if setup installs capture in it; nothing is set up or freed where others record."""
        return self.source if isinstance(self.source, Installable) else None

    @property
    def database(self) -> DatabaseSource | None:
        """The source, if it has the tables themselves."""
        return self.source if isinstance(self.source, DatabaseSource) else None

    @property
    def recording(self) -> SourceWithCopies | None:
        """The source, if it holds copies of its tables."""
        return self.source if isinstance(self.source, SourceWithCopies) else None

    def are_set_up(self) -> bool:
        """Whether setup was run: there are a ledger and something to capture from."""
        return self.target.has_ledger() and self.source.has_capture()

    def error_queue(self) -> ErrorQueue:
        """Open the error queue; raises an `OperatorError` before setup."""
        if not self.target.has_ledger():
            raise OperatorError("there is no error queue yet", where=self.target.label, do="run `penstock setup`")
        return self.target.error_queue()
