"""Where a pipeline stands: the one value that the command line, and whatever else shows it, draws from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from penstock.apply.ledger import ProcessState, ProcessStatus, RunPlace
from penstock.change import TableName
from penstock.events import SourceFacts
from penstock.history import NOTHING_HELD, ConsumerState, LogHold, OpenTransaction
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.stream import NOTHING_RECORDED, Backlog


class PipelineState(StrEnum):
    """What a pipeline is at, in words for people and programs."""

    NOT_SET_UP = "not set up"
    SET_UP = "set up"
    RUNNING = "running"
    STOPPED = "stopped"
    ABORTED = "aborted"
    """By an error that it was told to stop at, or without a word: it was killed."""


@dataclass(frozen=True)
class Status:
    """Where a pipeline stands, the most important first.

    Attributes:
        consistent_at: Source commit time up to which everything that is captured is applied, but for what is in the
            error queue. It says nothing of a table that `attention` calls not captured, and is no later than
            `recorded_until`.
        consistent_but_for: How many transactions the error queue holds, which are not applied.
        on_hold: How many of these a person has put on hold.
        lag_s: How long ago that was; 0 when nothing waits, however long ago the last change was made. None where nobody
            can tell.
        recorded_until: Where changes are read that others record, the time of the last one; None where there is none,
            and where the source itself is asked.
        ddl: How often DDL of the source was carried out at the target.
        source_lost: Why the source cannot be asked now: then all else is what the ledger knew last.
        backlog_changes: Changes in the source's log that are not applied yet.
        backlog_bytes: Disk that the source takes for what it keeps, or for what waits; 0 where nobody knows.
        state: See `PipelineState`; aborted means by an error.
        copied, to_copy: Tables whose first copy is complete, and those that wait for it.
        error: The error that made it abort.
        started_at, host, pid: When the run began that is at work now, on which machine and as which process; nothing
            while none runs, and of a pipeline that publishes.
        stopped_at, reason: When the last run stopped, and why; nothing while it runs.
        refused: Why the next run would be refused: source or target have another history.
        attention: Faults that the user has to fix before changes can be captured, or applied: a line each.
        consumers: Those that the source's log is kept for, and what each holds back; the furthest behind first.
        consumer_id: The pipeline's own among them.
        publishes_to: The archive that changes are published to; None where they are applied.
        waiting: The tables that wait for their first copy, by their names at the target.
        runs: How often a run has become the one of this pipeline; it does so again after a lost connection.
        open_transactions: Those at the source that keep freed rows of its log on disk for minutes, the oldest first.
    """

    pipeline: str
    state: PipelineState
    consistent_at: datetime | None
    lag_s: float | None
    backlog_changes: int
    backlog_bytes: int
    errors: int
    held: int
    conflicts: int
    resolved: int
    transactions: int
    changes: int
    low_watermark: int
    high_watermark: int
    copied: int
    to_copy: int
    error: str | None
    stopped_at: datetime | None
    reason: str | None
    refused: str | None
    attention: Sequence[str]
    consumers: Sequence[ConsumerState]
    publishes_to: str | None = None
    recorded_until: datetime | None = None
    source_lost: str | None = None
    ddl: int = 0
    runs: int = 0
    open_transactions: Sequence[OpenTransaction] = ()
    consumer_id: str = ""
    waiting: Sequence[TableName] = ()
    on_hold: int = 0
    started_at: datetime | None = None
    host: str | None = None
    pid: int | None = None

    @property
    def consistent_but_for(self) -> int:
        """How many transactions are not applied, though `consistent_at` may be later than they are."""
        return self.errors + self.held

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from penstock.pipeline.shown import status_html

        return status_html(self)

    def to_json(self) -> dict[str, Any]:
        """The status as plain data; an interface, see docs/cli.md."""
        plain = asdict(self)
        own_id = plain.pop("consumer_id")
        plain["consumers"] = [_plain_consumer(consumer, own_id) for consumer in self.consumers]
        for name in ("consistent_at", "started_at", "stopped_at", "recorded_until"):
            plain[name] = plain[name].isoformat() if plain[name] else None
        plain["consistent_but_for"] = self.consistent_but_for
        plain["waiting"] = [str(table) for table in self.waiting]
        for one in plain["open_transactions"]:
            one["since"] = one["since"].isoformat() if one["since"] else None
        return plain


def _plain_consumer(state: ConsumerState, own_id: str) -> dict[str, Any]:
    """What a consumer holds back, as plain data; `is_this` where it is the pipeline that was asked."""
    consumer = state.consumer
    return {
        "id": consumer.id,
        "name": consumer.name,
        "is_this": consumer.id == own_id,
        "target": consumer.target,
        "position": state.position,
        "transactions": state.transactions,
        "announced": state.announced,
        "size_bytes": state.size_bytes,
        "oldest_at": state.oldest_at.isoformat() if state.oldest_at else None,
        "seen_at": state.seen_at.isoformat(),
    }


@dataclass(frozen=True)
class MissingColumns:
    """What the target lacks of a table of the source: some columns, or, if there are none, the table itself."""

    table: TableName
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.columns:
            return f"table {self.table} does not exist at the target: its changes go to the error queue"
        names = f"column{'s' if len(self.columns) > 1 else ''} {', '.join(map(repr, self.columns))}"
        return (
            f"table {self.table} lacks {names} at the target: its changes go to the error queue until that is added, or"
            " what was renamed at the source is renamed there; `penstock plan` shows how"
        )

    @property
    def facts(self) -> SourceFacts:
        """The same for programs."""
        return {"table": str(self.table), "columns": list(self.columns)}


def lacking(source: Mapping[TableName, TableSchema], target: Mapping[TableName, TableSchema]) -> list[MissingColumns]:
    """Return what the target lacks of tables of the source that are copied."""
    found = []
    for name, table in sorted(source.items()):
        if name not in target:
            found.append(MissingColumns(name))
            continue
        names = tuple(column.name for column in table.columns if column.name not in target[name].by_name)
        if names:
            found.append(MissingColumns(name, names))
    return found


def not_set_up(pipeline: str) -> Status:
    """The status of a pipeline that lacks its ledger or its capture set."""
    return Status(
        pipeline,
        PipelineState.NOT_SET_UP,
        None,
        None,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        None,
        None,
        None,
        None,
        [],
        [],
    )


@dataclass(frozen=True)
class SourceState:
    """What a source says of a pipeline; by default nothing, as it is out of reach.

    Attributes:
        hold: Who the source's log is kept for.
        backlog: None where the source cannot be asked, as `lost` says.
        waiting: The tables that are not copied yet.
        refused: Why no run can go on with the source.
        attention: What a person should know of its tables.
    """

    backlog: Backlog | None = None
    hold: LogHold = NOTHING_HELD
    waiting: Sequence[TableName] = ()
    refused: str | None = None
    attention: Sequence[str] = ()
    lost: str | None = None


def status_of(
    pipeline: str,
    process: ProcessState | None,
    source: SourceState,
    *,
    is_running: bool,
    copied: Collection[Scn],
    place: RunPlace | None = None,
) -> Status:
    """Put together what the ledger and the source say.

    Args:
        place: Where the run is, if one is at work.
        copied: The positions that tables were copied at.
    """
    backlog = source.backlog
    if process is None:
        state = PipelineState.SET_UP
    elif is_running:
        state = PipelineState.RUNNING
    else:
        # A run that ends in any other way says so.
        is_killed = process.status is ProcessStatus.ENABLED
        state = PipelineState.ABORTED if is_killed or process.status is ProcessStatus.ABORTED else PipelineState.STOPPED
    now = datetime.now(UTC)
    consistent_at = process.consistent_at if process else None
    is_idle = False
    if process is None or source.waiting or source.refused is not None:
        consistent_at = None
    elif backlog is None:
        pass
    elif backlog.changes == 0:
        consistent_at, is_idle = now, True
    elif process.low_watermark < max(copied, default=0) and len(set(copied)) > 1:
        # Some tables were copied anew at a later position, which apply has not reached for the others.
        consistent_at = None
    elif backlog.oldest_at and (consistent_at is None or backlog.oldest_at < consistent_at):
        consistent_at = backlog.oldest_at
    lag_s = _lag_s(now, consistent_at, is_idle=is_idle, is_known=backlog is not None)
    recorded_until = backlog.complete_until if backlog is not None else None
    if consistent_at is not None and recorded_until is not None:
        consistent_at = min(consistent_at, recorded_until)
    if recorded_until == NOTHING_RECORDED:
        consistent_at = recorded_until = None
    reason = stopped_at = None
    if process is not None and not is_running:
        stopped_at = process.status_at if process.reason is not None else None
        reason = process.reason or "it could not say why: it was killed, or lost its machine or the target"
    own_id = process.history.consumer.id if process is not None else ""
    return Status(
        pipeline=pipeline,
        state=state,
        consistent_at=consistent_at,
        lag_s=lag_s,
        backlog_changes=backlog.changes if backlog is not None else 0,
        backlog_bytes=backlog.size_bytes if backlog is not None else 0,
        errors=process.errors if process else 0,
        held=process.held if process else 0,
        conflicts=process.conflicts if process else 0,
        resolved=process.resolved if process else 0,
        transactions=process.transactions if process else 0,
        changes=process.changes if process else 0,
        low_watermark=process.low_watermark if process else 0,
        high_watermark=process.high_watermark if process else 0,
        copied=len(copied),
        to_copy=len(source.waiting),
        error=process.error if process else None,
        stopped_at=stopped_at,
        reason=reason,
        refused=source.refused,
        attention=source.attention,
        consumers=source.hold.consumers,
        consumer_id=own_id,
        recorded_until=recorded_until,
        source_lost=source.lost,
        ddl=process.ddl if process else 0,
        runs=process.epoch if process else 0,
        open_transactions=source.hold.open,
        waiting=source.waiting,
        on_hold=process.on_hold if process else 0,
        started_at=process.status_at if process is not None and place is not None and is_running else None,
        host=place.host if place is not None else None,
        pid=place.pid if place is not None else None,
    )


def _lag_s(now: datetime, consistent_at: datetime | None, *, is_idle: bool, is_known: bool) -> float | None:
    if is_idle:
        # The last change may have been made long ago: an idle source is no lag.
        return 0.0
    return None if consistent_at is None or not is_known else max(0.0, (now - consistent_at).total_seconds())
