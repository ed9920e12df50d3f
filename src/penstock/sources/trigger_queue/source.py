"""The trigger queue as a Spark data source, for streams and for batches: `format("penstock.trigger_queue")`.

Options: `url` and `type` of the database (default `postgres`), `set` (the capture set, `penstock_<pipeline>`),
`source` (what the column of that name says, default: the set), `startingPosition` (default: all that is kept),
`endingPosition` (batch only, default: everything committed by now), `maxTransactionsPerTrigger`, `maxRowsPerTrigger`,
`readPartitions` (tasks that read one batch side by side, default 1).

A reader takes nothing from other readers of the set, and by default nothing is kept for it either: where it falls
behind what the others have freed, it fails. With `freeOnCommit` (streams only, default false) the stream becomes a
consumer of the set, under the name that option `consumer` gives: the log is kept for it, and freed when it and all
other consumers are done. `penstock consumers` lists them; one that will not come back has to be removed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.history import Consumer, freed, other_history
from penstock.position import Anchor, Limit, Scn
from penstock.sources.trigger_queue.position import QueueSlice, offset_json, offset_position
from penstock.sources.trigger_queue.queue import ChangeLog, OpenLog, QueueReader
from penstock.spark.options import refuse_unknown
from penstock.spark.schemas import CHANGES

_OPTIONS = (
    "url",
    "type",
    "set",
    "source",
    "startingPosition",
    "endingPosition",
    "maxTransactionsPerTrigger",
    "maxRowsPerTrigger",
    "readPartitions",
    "freeOnCommit",
    "consumer",
)

_EVERYTHING = Limit(max_transactions=2**62, max_changes=2**62, max_bytes=2**62)


class TriggerQueueSource(DataSource):
    """The data source, but for how a log is opened, which `log_of` of a subclass says."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "penstock.trigger_queue"

    def schema(self) -> StructType:
        """The change stream."""
        return CHANGES

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once, between two positions."""
        return _BatchReader(_Options.read(self.options), self._opened_by())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Read on and on."""
        return _StreamReader(_Options.read(self.options), self._opened_by())

    @staticmethod
    def log_of(kind: str, url: str, set_name: str) -> OpenLog:
        """Say how tasks open the log of a set in a kind of database."""
        raise NotImplementedError

    def _opened_by(self) -> OpenLog:
        options = _Options.read(self.options)
        return self.log_of(options.kind, options.url, options.set_name)


@dataclass(frozen=True)
class _Options:
    kind: str
    url: str
    set_name: str
    source: str
    start: Scn | None
    end: Scn | None
    limit: Limit | None
    read_partitions: int
    consumer: Consumer | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> _Options:
        refuse_unknown(options, _OPTIONS, source="penstock.trigger_queue")
        missing = [name for name in ("url", "set") if name not in options]
        if missing:
            raise ConfigError(f"option {' and '.join(map(repr, missing))} of penstock.trigger_queue is missing")
        rows = _number(options, "maxRowsPerTrigger", least=1)
        transactions = _number(options, "maxTransactionsPerTrigger", least=1)
        start, end = _number(options, "startingPosition"), _number(options, "endingPosition")
        limit = None
        if rows is not None or transactions is not None:
            limit = Limit(max_transactions=transactions or 2**62, max_changes=rows or 2**62, max_bytes=2**62)
        return cls(
            kind=options.get("type", "postgres"),
            url=options["url"],
            set_name=options["set"],
            source=options.get("source", options["set"]),
            start=None if start is None else Scn(start),
            end=None if end is None else Scn(end),
            limit=limit,
            read_partitions=_number(options, "readPartitions", least=1) or 1,
            consumer=_consumer(options),
        )


@dataclass
class _SlicePartition(InputPartition):
    part: QueueSlice


class _Reader:
    """What reading once and reading on have in common."""

    def __init__(self, options: _Options, open_log: OpenLog) -> None:
        self._options = options
        self._open_log = open_log

    def _partitions(self, start: Scn, end: Scn, cut: Anchor | None = None) -> list[_SlicePartition]:
        parts = slices_between(self._open_log(), start, end, cut)
        return [_SlicePartition(cut) for part in parts for cut in part.split(self._options.read_partitions)]

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _SlicePartition):
            return  # Spark stands one of its own in for none at all.
        reader = QueueReader.of(self._options.source, self._open_log, self._open_log().tables())
        yield from reader.read(partition.part)


class _BatchReader(_Reader, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        log = self._open_log()
        start = self._options.start if self._options.start is not None else log.earliest().scn
        newest = log.tick()
        end = self._options.end if self._options.end is not None else newest
        if not start <= end <= newest:
            raise ConfigError(
                f"penstock.trigger_queue cannot read from position {start} to {end}; the log ends at {newest}",
                do="set startingPosition and endingPosition to positions that were read before, in this order",
            )
        return self._partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)


class _StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    _until: Scn | None = None
    _is_kept_for = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        start, log = self._options.start, self._open_log()
        return _offset(log.earliest()) if start is None else offset_json(start, log.anchor_of(start))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.limit
        return ReadAllAvailable() if limit is None else ReadMaxRows(min(limit.max_changes, 2**62))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        position, cut = offset_position(start)
        log = self._log_kept_from(position, cut)
        once = isinstance(limit, ReadMaxRows)
        most = self._options.limit or _EVERYTHING if once else _EVERYTHING
        while (part := log.next_slice(position, most, until=self._until, anchor=cut)) is not None:
            position, cut = part.end, part.anchor
            if once:
                break
        return offset_json(position, cut or log.anchor_of(position))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._open_log().tick()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        position, cut = offset_position(start)
        log, (upto, last) = self._log_kept_from(position, cut), offset_position(end)
        if last is not None and log.anchor_of(upto) != last:
            raise other_history(last, where=f"capture set {self._options.set_name}")
        return self._partitions(position, upto, cut)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.consumer is not None:
            position, cut = offset_position(end)
            self._log_kept_from(position, cut).free(position, self._options.consumer.id)

    def stop(self) -> None:
        self._open_log().close()

    def _log_kept_from(self, position: Scn, cut: Anchor | None) -> ChangeLog:
        """The log, kept for this stream from its first position on; one of another history is refused first."""
        log = self._open_log()
        if not self._is_kept_for:
            if cut is not None and log.anchor_of(position) != cut:
                raise other_history(cut, where=f"capture set {self._options.set_name}")
            if self._options.consumer is not None:
                log.keep_for(self._options.consumer, position)
            self._is_kept_for = True
        return log


def slices_between(log: ChangeLog, start: Scn, end: Scn, cut: Anchor | None = None) -> Iterator[QueueSlice]:
    """Yield the transactions after `start` up to and including `end`: the same ones on every call.

    Raises:
        OperatorError: The log does not hold them all (any more), or `cut` is not its last cut at or before `start`.
    """
    while start < end:
        part = log.next_slice(start, _EVERYTHING, until=end, anchor=cut)
        if part is None:
            raise freed(start, where="penstock.trigger_queue")
        yield part
        start, cut = part.end, part.anchor


def _offset(cut: Anchor) -> dict[str, Any]:
    return offset_json(cut.scn, cut)


def _consumer(options: Mapping[str, str]) -> Consumer | None:
    """The consumer that the log is kept for, and that frees it; None for a reader that takes what it finds."""
    name = options.get("consumer", "").strip()
    frees = _flag(options, "freeOnCommit", default=False)
    if frees and not name:
        raise ConfigError(
            "option 'freeOnCommit' of penstock.trigger_queue needs option 'consumer'",
            do="give this stream a name of its own: the log is kept under it until the stream has read it",
        )
    if name and not frees:
        raise ConfigError(
            "option 'consumer' of penstock.trigger_queue needs option 'freeOnCommit'",
            do="set freeOnCommit to true: what is kept for this stream is freed by it, too",
        )
    return Consumer(f"stream {name}", name) if name else None


def _number(options: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    if name not in options:
        return None
    text = options[name].strip()
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"option {name!r} of penstock.trigger_queue must be a whole number, {least} or more")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"option {name!r} of penstock.trigger_queue must be true or false")
    return text == "true"
