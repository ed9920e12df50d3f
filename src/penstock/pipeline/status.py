"""Where a pipeline stands: the one value that the command line, and whatever else shows it, draws from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.apply.ledger import ProcessState
from penstock.sources.trigger_queue.queue import Backlog


@dataclass(frozen=True)
class Status:
    """Where a pipeline stands, the most important first.

    Attributes:
        consistent_at: Source commit time up to which everything is applied, or in the error queue.
        lag_s: How long ago that was; 0 when nothing waits.
        backlog_changes: Changes in the source's log that are not applied yet.
        backlog_bytes: Disk that the log takes at the source.
        state: `not set up`, `set up`, `running`, `stopped`, or `aborted` by an error.
        copied, to_copy: Tables whose first copy is complete, and those that wait for it.
    """

    pipeline: str
    state: str
    consistent_at: datetime | None
    lag_s: float | None
    backlog_changes: int
    backlog_bytes: int
    errors: int
    conflicts: int
    transactions: int
    changes: int
    low_watermark: int
    high_watermark: int
    copied: int
    to_copy: int
    error: str | None

    def to_json(self) -> dict[str, Any]:
        """The status as plain data; an interface, see docs/cli.md."""
        plain = asdict(self)
        plain["consistent_at"] = self.consistent_at.isoformat() if self.consistent_at else None
        return plain


def status_of(
    pipeline: str, process: ProcessState | None, backlog: Backlog | None, *, is_running: bool, copied: int, to_copy: int
) -> Status:
    """Put together what the ledger and the log say."""
    if backlog is None:
        state = "not set up"
    elif process is None:
        state = "set up"
    elif is_running:
        state = "running"
    else:
        state = "aborted" if process.status == "ABORTED" else "stopped"
    now = datetime.now(UTC)
    consistent_at = process.consistent_at if process else None
    if process is None or backlog is None or to_copy:
        consistent_at = None
    elif backlog.changes == 0:
        consistent_at = now
    elif backlog.oldest_at and (consistent_at is None or backlog.oldest_at < consistent_at):
        consistent_at = backlog.oldest_at
    lag_s = None if consistent_at is None else max(0.0, (now - consistent_at).total_seconds())
    return Status(
        pipeline=pipeline,
        state=state,
        consistent_at=consistent_at,
        lag_s=lag_s,
        backlog_changes=backlog.changes if backlog else 0,
        backlog_bytes=backlog.size_bytes if backlog else 0,
        errors=process.errors if process else 0,
        conflicts=process.conflicts if process else 0,
        transactions=process.transactions if process else 0,
        changes=process.changes if process else 0,
        low_watermark=process.low_watermark if process else 0,
        high_watermark=process.high_watermark if process else 0,
        copied=copied,
        to_copy=to_copy,
        error=process.error if process else None,
    )
