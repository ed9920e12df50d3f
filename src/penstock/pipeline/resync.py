"""A new first copy: what is done away with, and doing away with it, while the source is written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from penstock.apply.ledger import ProcessStatus
from penstock.database import Emptying, SetupStep
from penstock.errors import OperatorError
from penstock.pipeline.connectors import EventSource, Installable, SourceConnector, TargetConnector
from penstock.pipeline.transformed import untransformed
from penstock.text import count


@dataclass(frozen=True)
class Resync:
    """What a new first copy does away with.

    Attributes:
        target: The database whose tables are emptied, named without secrets.
        makes_set_anew: The capture set was copied here from another place, and is made anew first.
    """

    target: str
    emptying: Emptying
    makes_set_anew: bool


def plan(source: SourceConnector, target: TargetConnector) -> Resync:
    """Work out what `carry_out` would do. Changes nothing.

    Raises:
        OperatorError: The pipeline is running, or was not set up.
    """
    if not source.has_capture():
        raise OperatorError("there is no capture set", where=source.label, do="run `penstock setup`")
    target.check()
    with closing(target.ledger()) as ledger:
        ledger.refuse_second()
        emptying = ledger.plan_emptying()
        _refuse_without_rows(source, emptying)
        return Resync(target.label, emptying, _is_misplaced(source))


def carry_out(
    source: SourceConnector,
    target: TargetConnector,
    *,
    connection: str,
    take: Callable[[Sequence[SetupStep]], None],
    setup: Callable[[], object],
) -> Emptying:
    """Join the log anew, empty the tables that were copied, and forget the rest; the next run copies.

    Whatever is left half done, the next run refuses, and this is to be called again.

    Args:
        connection: Name of the source, which the process keeps.
        take: Takes steps at the source, all or none.
        setup: Sets the pipeline up, as `penstock setup` does.
    """
    with closing(target.ledger()) as ledger:
        # Become the one run: no other begins meanwhile, and tasks that an earlier one left can write no more.
        state = ledger.acquire(connection, lanes=1)
        _refuse_without_rows(source, ledger.plan_emptying())
        makes_set_anew = _is_misplaced(source)
        if isinstance(source, Installable):
            take(source.release(state.history.consumer))
        if makes_set_anew:
            setup()
        emptied = ledger.empty_and_forget()
        ledger.set_status(ProcessStatus.DISABLED, "`penstock resync --all` has prepared a new first copy")
        return emptied


def _refuse_without_rows(source: SourceConnector, emptying: Emptying) -> None:
    """Have a source that tells of changes alone, as a connector that began without a snapshot, empty no table.

    Raises:
        OperatorError: What is emptied would not be copied again.
    """
    events = untransformed(source)
    if emptying.tables and isinstance(events, EventSource) and not events.has_snapshot():
        raise OperatorError(
            f"there is no row of a snapshot to copy anew: {count(len(emptying.tables), 'table')} would be emptied, and"
            " get the changes alone that are there",
            where=source.label,
            do="have the connector begin with a new snapshot, in topics that are empty or under another prefix",
        )


def _is_misplaced(source: SourceConnector) -> bool:
    """Whether the capture set was copied from another place."""
    return isinstance(source, Installable) and source.history_fault() is not None
