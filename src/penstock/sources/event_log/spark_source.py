"""An event log as a Spark data source, for streams and for batches: `format("penstock.event_log")`.

Options: `url` and `type` of the database (default `postgres`), `table` (the log), `tables` (patterns of the tables that
it may name, with commas between; default: all of its schema), `format` (`changes`, or `xds`: each event as an element),
`source` (what the column of that name says, default: the log), `readPartitions` (tasks that read one batch side by
side, default 1), and the settings of a pipeline file's `capture.event_log`, in camel case.

A stream consumes the log: it polls into a journal, which option `journal` names and which it makes where there is none,
and writes the status of rows once Spark has committed their batch. A batch shows what a poll would find, and consumes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import OperatorError
from penstock.position import EVERYTHING, Scn
from penstock.sources.event_log.changes import AsChanges
from penstock.sources.event_log.channel import AsElements
from penstock.sources.event_log.elements import ELEMENTS, batch_of
from penstock.sources.event_log.failures import Failures
from penstock.sources.event_log.poll import EventForm
from penstock.sources.event_log.preview import preview
from penstock.sources.event_log.source import EventLogSource, Journal
from penstock.sources.recorded import RecordedReader, batches_of
from penstock.spark.offsets import StreamOffsets
from penstock.spark.schemas import CHANGES
from penstock.stream import Slice

_FORMAT = "penstock.event_log"

_OFFSETS = StreamOffsets("an event log", "journal", "position")

XDS_EVENTS: StructType = from_arrow_schema(ELEMENTS)
"""What `format` xds yields."""

_READER = ("stream", "feeds a Spark stream")


@dataclass(frozen=True)
class ReadOptions:
    """What the options say.

    Attributes:
        journal: For a batch, too, though it does not have to be there.
        source: What the column of that name says.
    """

    journal: Journal
    source: str
    is_xds: bool
    read_partitions: int

    @property
    def form(self) -> EventForm:
        """What the journal keeps of events."""
        return AsElements() if self.is_xds else AsChanges()

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield what the journal holds of a slice."""
        if self.is_xds:
            return self.journal.elements(part)
        return RecordedReader(self.journal, self.source, None).read(part)


class EventLogDataSource(DataSource):
    """The data source, but for what its options mean, which `reading` of a subclass says."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return _FORMAT

    def schema(self) -> StructType:
        """The change stream, or XDS elements."""
        return XDS_EVENTS if self.options.get("format", "").lower() == "xds" else CHANGES

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once what a poll would find."""
        return _BatchReader(self.reading(self.options, is_stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Poll on and on."""
        return _StreamReader(self.reading(self.options, is_stream=True))

    @staticmethod
    def reading(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
        """Say what options mean.

        Raises:
            ConfigError: One is missing, unknown, or of another form.
        """
        raise NotImplementedError


@dataclass
class _SlicePartition(InputPartition):
    part: Slice


class _BatchReader(DataSourceReader):
    """Reads in one task: what a poll would find, two tasks might find differently."""

    def __init__(self, reading: ReadOptions) -> None:
        self._reading = reading

    def partitions(self) -> Sequence[InputPartition]:
        log = self._reading.journal.open_log()
        try:
            log.refuse_unfit()
        finally:
            log.close()
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        journal = self._reading.journal
        log = journal.open_log()
        try:
            found = preview(log, journal.settings, self._reading.form)
        finally:
            log.close()
        if self._reading.is_xds:
            numbered = enumerate(found.kept, start=1)
            yield batch_of((at, kept.record_ids, kept.logged_at_us, kept.element or "") for at, kept in numbered)
            return
        keys = {
            version.table.name: version.table.primary_key.columns
            for version in journal.tables()
            if version.table.primary_key is not None
        }
        for batch in batches_of(found.transactions(), keys):
            at = batch.schema.get_field_index("source")
            yield batch.set_column(at, batch.schema.field(at), pa.repeat(self._reading.source, batch.num_rows))


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in the driver as long as the query, but for `read`."""

    def __init__(self, reading: ReadOptions) -> None:
        self._reading = reading
        self._opened: EventLogSource | None = None
        self._until: Scn | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        self._source()
        log = self._reading.journal.open_log()
        try:
            with log.transaction() as transaction:
                pending = transaction.pending()
                position = pending[0].position - 1 if pending else transaction.position()
        finally:
            log.close()
        return self._offset(Scn(position))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known, source = self._known(start), self._source()
        if (end := self._reading.journal.end()) < known:
            # What is polled now would get positions that the stream has passed.
            raise OperatorError(
                f"the journal stands at position {end}, before position {known}, which the checkpoint has reached: the"
                " database was restored to an older state",
                where=self._reading.journal.label,
                do="begin the query anew, with another checkpoint and an empty sink, and another journal",
            )
        if known < (settled := source.settled()):
            raise OperatorError(
                f"the journal does not hold what follows position {known}, which the checkpoint has reached: events up"
                f" to {settled} were settled for another stream, or the checkpoint was restored to an older state",
                where=self._reading.journal.label,
                do="begin the query anew, with another checkpoint and an empty sink; rows that are to come again have"
                " to be N",
            )
        # Spark has written down that all before `start` is done, so a poll may follow.
        part = source.next_slice(known, EVERYTHING, until=self._until)
        return start if part is None else self._offset(part.end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        source = self._source()
        # At most one event for each row.
        self._until = source.last_due()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        after, upto = self._known(start), self._known(end)
        found = self._reading.journal.next_slice(after) if after < upto else None
        part = Slice.empty(after) if found is None else found.take(after, EVERYTHING, upto)
        if len(part) < upto - after:
            raise OperatorError(
                f"the journal does not hold all events from position {after} to {upto}: they were settled for another"
                " stream, or the checkpoint was restored to an older state",
                where=self._reading.journal.label,
                do="begin the query anew, with another checkpoint and an empty sink; one stream reads a journal",
            )
        return [_SlicePartition(cut) for cut in part.split(self._reading.read_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _SlicePartition):  # Spark stands one of its own in for none at all.
            yield from self._reading.read(partition.part)

    def commit(self, end: dict[str, Any]) -> None:
        self._source().settle(self._known(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _source(self) -> EventLogSource:
        if self._opened is None:
            self._reading.journal.make()
            source = EventLogSource(self._reading.journal, Failures(), form=lambda: self._reading.form)
            source.claim(*_READER)
            self._opened = source
        return self._opened

    def _offset(self, position: Scn) -> dict[str, Any]:
        return _OFFSETS.write(self._reading.journal.id, position)

    def _known(self, offset: dict[str, Any]) -> Scn:
        return _OFFSETS.read(offset, self._reading.journal.id, where=self._reading.journal.label)
