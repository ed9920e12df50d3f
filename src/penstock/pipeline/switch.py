"""From one source of a database to another, without a new first copy: from triggers to the events of a connector."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass

from penstock.apply.ledger import ProcessStatus
from penstock.apply.progress import Progress
from penstock.change import TableName
from penstock.errors import ConfigError, OperatorError
from penstock.pipeline.connectors import EventSource, PipelineEnds, PlainDatabase, TargetLedger
from penstock.pipeline.transformed import untransformed
from penstock.position import Scn
from penstock.text import are, count

_WHICH = "switch from capture.source trigger_queue to debezium"


@dataclass(frozen=True)
class Switched:
    """What was done.

    Attributes:
        progress: Of the last run from the former source; None where the process had been switched before.
        position: Where the process goes on in the new source.
        untold: Tables of the pipeline of which the new source has told nothing yet.
        removed: What was removed at the former source, a line each.
        notes: What was left there, and why.
    """

    progress: Progress | None
    position: Scn
    untold: Sequence[TableName]
    removed: Sequence[str] = ()
    notes: Sequence[str] = ()


def switch(
    before: PipelineEnds, after: PipelineEnds, run: Callable[[], Progress], stop: threading.Event, *, wait_s: float
) -> Switched:
    """Apply what the former source has, and have the process go on in the other behind exactly that.

    Both are read at a point that both know: an empty transaction, committed before the last run from the former
    source begins, is the first that the other has to know; another one, behind that run, is the last.

    Args:
        run: Applies from the former source until it has caught up.
        stop: Set to give up.
        wait_s: How long the new source may take to tell of a transaction.

    Raises:
        OperatorError: One of the two cannot be switched, the error queue holds transactions, a table is not copied, a
            run is alive, the new source's events cannot be read with certainty, or it does not have all that follows.
    """
    _refuse_other(before, after)
    leaves, takes = untransformed(before.source), untransformed(after.source)
    if not isinstance(leaves, PlainDatabase):
        raise OperatorError("no other source can go on where this one is left", where=leaves.label, do=_WHICH)
    if not isinstance(takes, EventSource):
        raise OperatorError("this source cannot go on where another one is left", where=takes.label, do=_WHICH)
    with closing(before.target.ledger()) as ledger:
        ledger.refuse_second()
        state = ledger.state()
        if state is None:
            what = "there is nothing to switch yet"
            raise OperatorError(what, where=before.target.label, do="run `penstock setup`, then `penstock run`")
        if state.history.origin == takes.place():
            return Switched(None, state.low_watermark, _untold(after, ledger))
        _refuse_errors(ledger, before)
        _refuse_unread(after, ledger)
    first = leaves.mark()
    progress = run()
    if stop.is_set():
        what = "stopped before the switch; nothing was changed"
        raise OperatorError(what, where=before.source.label, do="switch again")
    if progress.ended_by is not None:
        what = f"the last run from the former source ended before all was applied: {progress.ended_by}"
        raise OperatorError(what, where=before.target.label, do="raise the limit by `penstock apply set`; switch again")
    with closing(before.target.ledger()) as ledger:
        state = ledger.acquire(before.config.capture.name, lanes=1)
        _refuse_errors(ledger, before)
        if state.high_watermark > state.low_watermark:
            what = "another run has begun to apply meanwhile, and was stopped"
            raise OperatorError(what, where=before.target.label, do="switch again, and let nothing else run")
        left = leaves.hand_over(state.low_watermark, first)
        # Not earlier: a table may have been made while the last run was at work.
        _refuse_uncopied(before, after, progress.left_out)
        taken = takes.take_over(left, wait_s=wait_s)
        ledger.switch(after.config.capture.name, taken)
        ledger.set_status(ProcessStatus.DISABLED, "switched to another source")
        return Switched(progress, taken.joined.position, _untold(after, ledger))


def _refuse_other(before: PipelineEnds, after: PipelineEnds) -> None:
    if before.config.name != after.config.name:
        raise ConfigError(
            f"the files are of two pipelines, {before.config.name!r} and {after.config.name!r}",
            where="name",
            do="a switch changes `capture` only: give both files one name",
        )
    rules = [way.config.rules and way.config.rules.model_dump() for way in (before, after)]
    if rules[0] != rules[1]:
        raise ConfigError("the files have different rules", where="rules", do="a switch changes `capture` only")
    if before.target.identity() != after.target.identity():
        where = f"{before.target.label}; {after.target.label}"
        raise ConfigError("the files have different targets", where=where, do="a switch changes `capture` only")


def _refuse_errors(ledger: TargetLedger, before: PipelineEnds) -> None:
    errors = ledger.queue_state().total
    if errors:
        raise OperatorError(
            f"the error queue holds {count(errors, 'transaction')}, whose order is that of the former source",
            where=before.target.label,
            do="`penstock errors retry --all` or `penstock errors delete --all` first",
        )


def _refuse_uncopied(before: PipelineEnds, after: PipelineEnds, left_out: Collection[str]) -> None:
    """Have every table copied that the new source tells of: it tells of changes alone, as if tables began empty."""
    missing = set(left_out)
    if (installed := before.installed) is not None:
        made = {one.table for one in installed.not_captured(after.config.capture.tables) if one.awaits_setup}
        if before.config.handlers.ddl is not None:
            # It may have said that it does not want them.
            made -= {one.table for one in installed.not_captured(before.config.capture.tables)}
        missing |= set(map(str, made))
    if missing:
        raise OperatorError(
            f"{', '.join(sorted(missing))} {are(len(missing))} not copied, and the new source tells of changes alone:"
            " the rows that are there would be missing",
            where=before.target.label,
            do="have `penstock setup` and `penstock run` copy them with the former file, whose capture.tables is to"
            " mean them; or leave them out of capture.tables, or by rules.exclude; then switch again",
        )


def _refuse_unread(after: PipelineEnds, ledger: TargetLedger) -> None:
    """Have the new source say what of its events would not be read, while nothing depends on them yet."""
    for fault in after.source.plan(sorted(after.source.describe(ledger.instantiated())), ()).faults:
        raise fault


def _untold(after: PipelineEnds, ledger: TargetLedger) -> Sequence[TableName]:
    copied = ledger.instantiated()
    return sorted(set(copied) - set(after.source.describe(copied)))
