"""Switching over to the copy: waits until it has everything, compares, and makes it ready to be written to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from penstock.apply.progress import Progress
from penstock.change import TableName
from penstock.database import CatalogDifference, MissingObject, SequenceSetting
from penstock.dialects.sessions import PostDataBuilder, SequenceReader, WriteFreeze
from penstock.errors import OperatorError, RetryableError
from penstock.pipeline.connectors import DatabaseSource, SourceConnector, TargetConnector, TargetLedger
from penstock.pipeline.process_state import low_watermark
from penstock.position import Scn
from penstock.stream import Source
from penstock.text import are, count
from penstock.verify.driver import VerifyResult

_PAUSE_S = 0.2


@dataclass(frozen=True)
class Cutover:
    """How a cutover went, or would go.

    Attributes:
        position: Everything up to here is applied, and nothing else was there when it was taken; None in a dry run.
        is_locked: Whether writers were kept waiting at the source.
        writers: Transactions that are open at the source.
        is_behind: Whether something was not applied yet; told by a dry run only.
        queued: Transactions in the error queue.
        compared: How both sides compare; None where that was not asked.
        sequences: Where they stood, and where they stand now, or would.
        made: What the copy lacked, and was made; or would be.
        lacks: What the copy goes on to lack, each with the reason.
        differences: In what the copy is not what the source is, those of `lacks` included.
        uncaptured: Tables that the pipeline means and that are not captured, each with the reason: they are not copied.
        is_written_after: Whether the source was written to after the position was taken.
        is_dry: Whether nothing was changed because nothing was to be.
    """

    position: Scn | None
    is_locked: bool = False
    writers: Sequence[str] = ()
    is_behind: bool = False
    queued: int = 0
    compared: VerifyResult | None = None
    sequences: Sequence[SequenceSetting] = ()
    made: Sequence[str] = ()
    lacks: Sequence[MissingObject] = ()
    differences: Sequence[CatalogDifference] = ()
    uncaptured: Sequence[str] = ()
    is_written_after: bool = False
    is_dry: bool = False

    @property
    def is_same(self) -> bool:
        """Whether the copy has what the source has."""
        return not (self.queued or self.uncaptured) and (self.compared is None or self.compared.are_rows_identical)

    @property
    def is_ready(self) -> bool:
        """Whether the application may write to the copy."""
        return self.is_same and not (self.writers or self.is_behind or self.is_written_after)


@dataclass(frozen=True)
class CutoverPipeline:
    """A pipeline, as far as a cutover works with it.

    Attributes:
        tables: Those that are followed, by their names at the target.
        uncaptured: Those that should be, and are not captured, each with the reason.
        run: Applies until it has caught up.
        verify: Compares all tables.
    """

    source: SourceConnector
    target: TargetConnector
    tables: Sequence[TableName]
    uncaptured: Sequence[str]
    run: Callable[[], Progress]
    verify: Callable[[], VerifyResult]


@dataclass
class _Work:
    """What is open during a cutover."""

    ledger: TargetLedger
    stream: Source
    still: WriteFreeze
    reader: SequenceReader
    post_data_builder: PostDataBuilder
    tables: Sequence[TableName] = field(default_factory=list)


def cutover(way: CutoverPipeline, stop: threading.Event, *, lock: bool, wait_s: float, is_dry: bool) -> Cutover:
    """Make the copy ready for the application, once it has all that the source has.

    Nothing is changed at the target but by applying until both sides are found to be identical. Called again, it does
    what is still missing.

    Args:
        stop: Set to give up.
        lock: Keep writers waiting at the source until the end.
        wait_s: How long to wait for transactions that are open at the source, and for a run of another process to
            apply what was committed.
        is_dry: Look only: neither wait, nor lock, apply, compare or change anything.

    Raises:
        OperatorError: Tables are not copied yet, a sequence cannot be read, or a writer is still at work.
        RetryableError: What was committed was not applied in time.
    """
    source = way.source
    if not isinstance(source, DatabaseSource):
        raise OperatorError(
            "only changes come from this source: it has no tables to compare with, and no sequences",
            where=source.label,
            do="cut over by a pipeline that captures from the database itself",
        )
    form = source.post_data(way.tables)
    with (
        closing(way.target.ledger()) as ledger,
        closing(source.open_source()) as stream,
        closing(source.write_freeze(way.tables)) as still,
        closing(source.sequence_reader(form)) as reader,
        closing(way.target.post_data_builder(form)) as post_data_builder,
    ):
        work = _Work(ledger, stream, still, reader, post_data_builder, way.tables)
        _refuse_hidden(reader, source.label)
        if is_dry:
            return replace(_look(work), uncaptured=way.uncaptured)
        return _cut_over(way, work, stop, lock=lock, wait_s=wait_s)


def _look(work: _Work) -> Cutover:
    state = work.ledger.state()
    lacks = work.post_data_builder.lacks()
    return Cutover(
        None,
        writers=work.still.writers(),
        is_behind=state is None or work.stream.backlog(state.low_watermark).changes > 0,
        queued=work.ledger.queue_state().total,
        sequences=work.post_data_builder.sequences_to_set(work.reader.read()),
        made=[lack.what for lack in lacks if not lack.reason],
        lacks=[lack for lack in lacks if lack.reason],
        differences=work.post_data_builder.differences(),
        is_dry=True,
    )


def _cut_over(way: CutoverPipeline, work: _Work, stop: threading.Event, *, lock: bool, wait_s: float) -> Cutover:
    if lock:
        work.still.lock(wait_s)
    else:
        _await_writers(work.still, stop, wait_s, where=way.source.label)
    position = work.stream.tick()
    _apply(way, work, position, stop, wait_s)
    applied = _applied(work.ledger)
    found = Cutover(
        position,
        is_locked=lock,
        queued=work.ledger.queue_state().total,
        compared=way.verify(),
        uncaptured=way.uncaptured,
    )
    if not found.is_same:
        return replace(found, lacks=work.post_data_builder.lacks())
    # Read once no writer is left: a value that is drawn, and not used, does no harm.
    settings = work.post_data_builder.set_sequences(work.reader.read())
    built = list(work.post_data_builder.build(work.tables, is_last=True))
    refused = {lack.what: lack for lack in built if lack.reason}
    if lock and not work.still.is_locked:
        raise RetryableError(
            "the session that kept writers waiting was lost", where=way.source.label, do="cut over again"
        )
    return replace(
        found,
        sequences=settings,
        made=[lack.what for lack in built if not lack.reason],
        lacks=[refused.get(lack.what, lack) for lack in work.post_data_builder.lacks()],
        differences=_with_reasons(work.post_data_builder.differences(), refused),
        writers=[] if lock else work.still.writers(),
        is_written_after=_is_written_after(work, position, applied),
    )


def _with_reasons(
    differences: Sequence[CatalogDifference], refused: Mapping[str, MissingObject]
) -> list[CatalogDifference]:
    return [replace(one, reason=refused[one.what].reason) if one.what in refused else one for one in differences]


def _is_written_after(work: _Work, position: Scn, applied: int) -> bool:
    """Whether changes came after a position: they wait, or a run that is alive has applied them meanwhile."""
    return work.stream.backlog(position).changes > 0 or _applied(work.ledger) > applied


def _applied(ledger: TargetLedger) -> int:
    state = ledger.state()
    return state.transactions if state is not None else 0


def _refuse_hidden(reader: SequenceReader, where: str) -> None:
    if reader.hidden:
        what = "sequences that captured tables draw from cannot be read"
        raise OperatorError(what, where=where, do="; ".join(reader.hidden))


def _await_writers(still: WriteFreeze, stop: threading.Event, wait_s: float, *, where: str) -> None:
    deadline = time.monotonic() + wait_s
    while writers := still.writers():
        if stop.is_set() or time.monotonic() > deadline:
            number = len(writers)
            raise RetryableError(
                f"{count(number, 'transaction')} {are(number)} writing at the source: {'; '.join(writers)}",
                where=where,
                do="stop the application, and end what it has left open; --lock keeps writers waiting instead."
                " Nothing was changed",
            )
        stop.wait(_PAUSE_S)


def _apply(way: CutoverPipeline, work: _Work, position: Scn, stop: threading.Event, wait_s: float) -> None:
    """See to it that everything up to a position is applied: by the run that is alive, or by one of our own."""
    ledger = work.ledger

    def is_applied() -> bool:
        # An idle run writes down that nothing has come only now and then.
        return low_watermark(ledger) >= position or work.stream.backlog(low_watermark(ledger)).changes == 0

    deadline = time.monotonic() + wait_s
    while ledger.is_running():
        if is_applied():
            return
        if stop.is_set() or time.monotonic() > deadline:
            raise RetryableError(
                f"position {position} is not applied yet: the target is at {low_watermark(ledger)}",
                where=way.target.label,
                do="give the run more time by --wait. Nothing was changed",
            )
        stop.wait(_PAUSE_S)
    if not is_applied():
        way.run()
    if not is_applied():
        what = f"the run ended before position {position} was applied"
        raise RetryableError(what, where=way.target.label, do="cut over again. Nothing else was changed")
