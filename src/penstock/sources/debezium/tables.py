"""The tables that events tell of: by their schemas, or by what is known of them otherwise."""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.change import NO_VERSION, Change, Image, TableName
from penstock.errors import MalformedInputError
from penstock.events import Event, tell
from penstock.formats.debezium.bulk import BulkDecoder
from penstock.formats.debezium.declared import MYSQL_FAMILY
from penstock.formats.debezium.decode import DataEvent, DecodeSettings, RecordDecoder, RowType, Seen, Shape
from penstock.formats.debezium.envelope import Boundary, ChangeLocation, SkippedRecord
from penstock.formats.debezium.join import changes_of
from penstock.formats.debezium.record import TopicRecord
from penstock.logical import Kind, LogicalType
from penstock.schema import Column, TableSchema, Unique
from penstock.sources.debezium.advice import column_advice
from penstock.sources.debezium.ambiguous import AmbiguousColumn, PlainRow, doubts
from penstock.sources.debezium.history import other_server
from penstock.sources.debezium.log import RecordLog
from penstock.sources.debezium.scan import LogScanner, ScanResult, advised
from penstock.sources.debezium.unsigned import below_zero, below_zero_of_plain, is_for_unsigned
from penstock.stream import TableVersion

_SAMPLE = 20
"""How many records at either end of a partition are looked at for the tables that it is of."""


_MOST_WEIGHED = 200
"""So many rows of a table without schemas are kept, to see whether what is told of its columns is plausible."""

_MESSAGES = "LogicalDecodingMessageId@"
"""PostgreSQL's logical messages are counted under a name that holds this, as long as nobody has fixed it."""

_TOLD_ALONE = 100
"""So many skipped records are told one by one, and then each hundredth."""

_MOST_REASONS = 10_000

_PLAIN = "has_no_schema"
"""In the definition of a version: its events have no schemas to tell it by."""


class _Shape(NamedTuple):
    """What makes a version of a table."""

    table: TableName
    columns: tuple[tuple[str, LogicalType, bool], ...]
    key: tuple[str, ...]

    @property
    def number(self) -> int:
        """The same wherever the same columns are met, and for no others of the table."""
        text = json.dumps([[name, repr(kind), null] for name, kind, null in self.columns] + [list(self.key)])
        return zlib.crc32(text.encode()) & 0x7FFFFFFF or 1


@dataclass(frozen=True)
class EventDecoder:
    """Decodes in tasks; travels there.

    Attributes:
        newest: The last version of each table.
        plain: The same, of tables whose events have no schemas.
        keys: The columns of the key in each version of a table that has one.
        skips: Records that are no events are passed over.
    """

    settings: DecodeSettings
    newest: Mapping[TableName, int]
    plain: Mapping[TableName, int]
    keys: Mapping[tuple[TableName, int], Sequence[str]]
    skips: bool = False
    _numbers: dict[object, int] = field(default_factory=dict, compare=False, repr=False)
    _decoder: list[RecordDecoder] = field(default_factory=list, compare=False, repr=False)
    _bulk: list[BulkDecoder] = field(default_factory=list, compare=False, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        return EventDecoder, (self.settings, self.newest, self.plain, self.keys, self.skips)

    @classmethod
    def of(
        cls,
        settings: DecodeSettings,
        versions: Iterable[TableVersion],
        *,
        skips: bool,
        only: Set[TableName] | None = None,
    ) -> EventDecoder:
        """Decode rows of some tables, of these versions; of those without schemas the last one of a table counts."""
        versions = list(versions)
        plain = {v.table.name: v.table for v in versions if _PLAIN in v.definition}
        declared = {name: {column.name: column.logical for column in table.columns} for name, table in plain.items()}
        return cls(
            replace(settings, declared=declared, only=only),
            {v.table.name: v.table.version for v in versions},
            {name: table.version for name, table in plain.items()},
            {
                (v.table.name, v.table.version): v.table.primary_key.columns
                for v in versions
                if v.table.primary_key is not None
            },
            skips,
        )

    @property
    def decoder(self) -> RecordDecoder:
        """What has been learned of schemas, in this process."""
        if not self._decoder:
            self._decoder.append(RecordDecoder(self.settings))
        return self._decoder[0]

    @property
    def bulk(self) -> BulkDecoder | None:
        """What decodes many events at once, in this process; None where messages are not JSON."""
        if not self._bulk and self.decoder.messages is not None:
            self._bulk.append(BulkDecoder(self.decoder, self.decoder.messages))
        return self._bulk[0] if self._bulk else None

    def event(self, record: TopicRecord) -> DataEvent | None:
        """Return the change or the row that a record is; None where it is neither."""
        try:
            found = self.decoder.decode(record)
        except MalformedInputError:
            if self.skips:
                return None
            raise
        return found if isinstance(found, DataEvent) else None

    def changes(self, events: Iterable[DataEvent]) -> Iterator[Change]:
        """Yield the changes of a transaction, whose events come in order."""
        return changes_of(events, self.version)

    def rows(self, records: Iterable[TopicRecord], table: TableName) -> Iterator[Image]:
        """Yield the rows of snapshots of a table among records."""
        for record in records:
            event = self.event(record)
            if event is not None and event.location.is_snapshot and event.location.table == table and event.after:
                yield event.after

    def version(self, event: DataEvent) -> int:
        """Return the version of the table that an event is written under."""
        table = event.location.table
        if event.row_type is None and event.location.op == "t":
            # A truncation has no row, and so says nothing of its table's columns.
            return self.newest.get(table, NO_VERSION)
        return self.version_of(table, event.row_type, tuple(event.key or ()))

    def version_of(self, table: TableName, row_type: RowType | None, key: tuple[str, ...]) -> int:
        """Return the version of a table that rows of a type are written under, with a key of these columns."""
        if row_type is None:
            return self.plain.get(table, NO_VERSION)
        place = table, row_type, key
        number = self._numbers.get(place)
        if number is None:
            number = self._numbers[place] = _shape(table, row_type, key).number
        return number


class Tables:
    """Every table, and every version of it, that events were seen of; may be asked by any thread."""

    def __init__(
        self,
        settings: DecodeSettings,
        prefix: str,
        *,
        skips: bool,
        described: Callable[[TableName], TableSchema | None] = lambda _: None,
        is_wanted: Callable[[TableName], bool] = lambda _: False,
    ) -> None:
        """Know nothing yet.

        Args:
            is_wanted: Whether the pipeline is about a table, if there is one of the name.
            prefix: Of the connector's topics.
            skips: Records that are no events are counted and passed over.
            described: The table at the target, which says in what form plain values of events without schemas are
                written; None without one.
        """
        self._described = described
        self._is_wanted = is_wanted
        self._settings = settings
        self._prefix = prefix
        self._skips = skips
        self._decoder = RecordDecoder(settings)
        # What is told of columns may be wrong, which is found out by looking at their values, and not by reading them.
        self._plain_decoder = RecordDecoder(replace(settings, columns={}, samples={}))
        self._lock = threading.RLock()
        self._seen: set[tuple[TableName, Shape | None, str]] = set()
        self._versions: dict[tuple[TableName, int], TableVersion] = {}
        self._plain: dict[TableName, int] = {}
        self._collections: set[str] = set()
        self._topics: dict[TableName, set[str]] = {}
        self._doubtful: set[TableName] = set()
        self._connectors: dict[TableName, str] = {}
        self._below_zero: dict[TableName, set[str]] = {}
        self._untyped: dict[TableName, set[str]] = {}
        self._plain_rows: dict[TableName, list[PlainRow]] = {}
        self._is_surveyed = False
        self._server = ""
        # As whose events were found to be those of the server, by topic.
        self._held: set[tuple[str, str, str, str]] = set()
        self._skipped_reasons: set[str] = set()
        self.passed: Counter[SkippedRecord] = Counter()
        self.skipped = 0
        self.has_ends = False

    def look(self, record: TopicRecord) -> Seen | None:
        """Say what a record is, and learn what it tells of its table; None for one that is skipped.

        Raises:
            MalformedInputError: It is not an event.
        """
        try:
            found, shape = self._decoder.scan(record)
            if isinstance(found, ChangeLocation):
                self._hold(record, found)
                self._learn(record, found, shape)
                if not self._is_surveyed:
                    self._keep(record, found, shape)
        except MalformedInputError as exc:
            if not self._skips:
                raise advised(exc) from exc
            self._skip(str(exc))
            return None
        if isinstance(found, SkippedRecord):
            self.passed[found] += 1
        elif not isinstance(found, ChangeLocation):
            self.has_ends = True
        return found

    @property
    def server(self) -> str:
        """The connector, its name and the database that events are of; empty before one was seen."""
        return self._server

    def expect(self, server: str, *, where: str) -> None:
        """Make sure that events are of a server, as `server` says it; an empty one is any.

        Raises:
            HistoryError: Some were of another one.
        """
        if server:
            self._expect_parts(server.split("/", 2), where, is_known=True)

    def _hold(self, record: TopicRecord, found: ChangeLocation) -> None:
        """Make sure that an event is of the server that the others are of."""
        source = found.source
        if (named := (source.connector, source.name, source.database, record.topic)) in self._held:
            return
        if source.connector and source.name:
            parts = [source.connector, source.name]
            # The database of MySQL's connector is that of the table; SQL Server's may read several, each in its topics.
            is_of_topic = source.connector == "sqlserver" and f".{source.database}." in record.topic
            if source.connector not in MYSQL_FAMILY and source.database and not is_of_topic:
                parts.append(source.database)
            self._expect_parts(parts, record.where)
        self._held.add(named)

    def _expect_parts(self, parts: Sequence[str], where: str, *, is_known: bool = False) -> None:
        with self._lock:
            there = self._server.split("/", 2) if self._server else []
            # Not every event tells the database.
            if there[: len(parts)] != list(parts[: len(there)]):
                known, found = (parts, there) if is_known else (there, parts)
                raise other_server("/".join(known), "/".join(found), where=where)
            if len(parts) > len(there):
                self._server = "/".join(parts)

    def scanner(self, log: RecordLog) -> LogScanner:
        """Return what looks at records of a log elsewhere; `learn` takes what it has found."""
        return LogScanner(log, self._settings, self._skips)

    def learn(self, found: ScanResult) -> None:
        """Learn what records that were looked at elsewhere tell of their tables.

        Raises:
            MalformedInputError: As `look`.
        """
        for record in found.samples:
            self.look(record)
        self.passed += found.passed
        self.has_ends |= found.has_boundaries
        for reason in found.reasons:
            self._skip(reason)
        self.skipped += found.skipped - len(found.reasons)

    def _skip(self, reason: str) -> None:
        # It names the record. What was looked at for its tables is looked at again when it is followed.
        if reason in self._skipped_reasons:
            return
        if len(self._skipped_reasons) < _MOST_REASONS:
            self._skipped_reasons.add(reason)
        self.skipped += 1
        if self.skipped <= _TOLD_ALONE or self.skipped % _TOLD_ALONE == 0:
            tell(Event.NOTE, f"a record was skipped, number {self.skipped}: {reason}", level=logging.WARNING)

    def committed_at_us(self, record: TopicRecord) -> int | None:
        """Return when the change or the transaction that a record tells of was committed; None where it does not say.

        Raises:
            MalformedInputError: As `look`.
        """
        found = self.look(record)
        if isinstance(found, ChangeLocation):
            return found.source.ts_us
        return found.ts_us if isinstance(found, Boundary) else None

    def survey(self, log: RecordLog) -> None:
        """Look at some records of each partition, for its tables; nothing is done once some are known."""
        if self._is_surveyed:
            return
        for partition, extent in log.extents().items():
            ranges = [(extent.first, extent.end)]
            if extent.end - extent.first > 2 * _SAMPLE and not log.ends:
                ranges = [(extent.first, extent.first + _SAMPLE), (extent.end - _SAMPLE, extent.end)]
            for first, end in ranges:
                for record in log.read(partition, first, end):
                    self.look(record)
        # A connector that has just begun may not have written anything yet.
        self._is_surveyed = bool(self._versions)

    def versions(self) -> Sequence[TableVersion]:
        """Return all versions, in the order in which they were met."""
        with self._lock:
            return list(self._versions.values())

    @property
    def settings(self) -> DecodeSettings:
        """What events do not say of themselves."""
        return self._settings

    @property
    def skips(self) -> bool:
        """Whether records that are no events are passed over."""
        return self._skips

    @property
    def prefix(self) -> str:
        """What the connector's topics begin with, before a dot; empty where they are named otherwise."""
        return self._prefix

    def topics(self, table: TableName) -> Collection[str]:
        """Return the topics that a table's events were found in."""
        with self._lock:
            return frozenset(self._topics.get(table, ()))

    def is_meant(self, collection: str) -> bool:
        """Whether what an END counts under a name is a table that the pipeline is about."""
        if _MESSAGES in collection:
            return False
        parts = collection.split(".")
        # Names may hold dots, and before that of the schema there may be one of the database.
        splits = [(start, at) for at in range(1, len(parts)) for start in range(at)]
        return any(self._is_wanted(TableName(".".join(parts[start:at]), ".".join(parts[at:]))) for start, at in splits)

    def is_read(self, collection: str, topics: Collection[str]) -> bool:
        """Whether events of a table, by the connector's name of it, are among those of these topics."""
        if collection in self._collections:
            return True
        # Of a topic's name only some characters are the table's own; Oracle's has no database in it.
        plain = "".join(sign if (sign.isalnum() and sign.isascii()) or sign in "._-" else "_" for sign in collection)
        return any(f"{self._prefix}.{name}" in topics for name in (plain, plain.partition(".")[2]))

    def untyped(self, tables: Collection[TableName]) -> Mapping[TableName, Sequence[str]]:
        """Return the columns of which nothing tells anything: their values are read as they stand, as text.

        All columns of a table where the target has no such table either.
        """
        with self._lock:
            return {name: sorted(self._untyped[name]) for name in sorted(tables) if self._untyped.get(name)}

    def doubts(self, tables: Collection[TableName]) -> Mapping[TableName, Sequence[AmbiguousColumn]]:
        """Return the columns of tables that may be misread, as far as the first events show it."""
        found: dict[TableName, Sequence[AmbiguousColumn]] = {}
        for name in sorted(tables):
            rows = self._plain_rows.get(name)
            if rows:
                described = self._described(name)
                expected = {} if described is None else {column.name: column.logical for column in described.columns}
                if some := doubts(rows, expected, self._settings.modes):
                    found[name] = some
        return found

    def _keep(self, record: TopicRecord, found: ChangeLocation, shape: Shape | None) -> None:
        """Look at the rows of a record, and keep those without a schema, to tell what may be misread."""
        connector = found.source.connector
        told = self._decoder.told(record, found.table, connector)
        plain = self._decoder.rows(record) if isinstance(shape, tuple) else ()
        rows = self._plain_rows.setdefault(found.table, [])
        if len(rows) < _MOST_WEIGHED:
            rows += [PlainRow(connector, row, told) for row in plain]
        if connector in MYSQL_FAMILY and shape is not None:
            if isinstance(shape, tuple):
                columns = below_zero_of_plain(plain, told)
            else:
                event = self._decoder.decode(record)
                columns = below_zero(event, told) if isinstance(event, DataEvent) else set()
            self._below_zero.setdefault(found.table, set()).update(columns)

    def without_sign(self, tables: Collection[TableName]) -> Iterator[tuple[TableName, str, bool]]:
        """Yield the columns that hold numbers of 64 bits below zero and may be unsigned, for all that is told.

        And whether the target's column is one for unsigned numbers.
        """
        for table in sorted(tables):
            columns = self._below_zero.get(table)
            described = self._described(table) if columns else None
            there = {} if described is None else described.by_name
            for name in sorted(columns or ()):
                yield table, name, name in there and is_for_unsigned(there[name].logical)

    def advice(self, tables: Collection[TableName]) -> Sequence[str]:
        """Say what the connector should be told, as far as its events show it."""
        lines = []
        if not self.has_ends:
            lines.append(
                "no transaction topic was found yet: without one, a transaction counts as complete once later ones were"
                " seen everywhere; have the connector write it (provide.transaction.metadata)"
            )
        doubtful = sorted(str(table) for table in self._doubtful.intersection(tables))
        if doubtful:
            lines.append(
                f"columns of {', '.join(doubtful)} may be null and have a default: a NULL arrives as the default,"
                " unless the connector's value.converter.replace.null.with.default is false"
            )
        for name in sorted(self._connectors.keys() & set(tables)):
            described = self._described(name)
            there = {} if described is None else described.by_name
            newest = [version.table for version in self.versions() if version.table.name == name][-1]
            lines += column_advice(newest, there, self._connectors[name])
        return lines

    def _learn(self, record: TopicRecord, found: ChangeLocation, shape: Shape | None) -> None:
        if found.op == "t":
            self._collections.add(found.source.collection)
            return
        known = found.table, shape, record.topic
        if known in self._seen:
            return
        if isinstance(shape, tuple):
            event = self._plain_decoder.decode(replace(record, headers=()))
        else:
            event = self._decoder.decode(record)
        assert isinstance(event, DataEvent)
        with self._lock:
            self._seen.add(known)
            self._topics.setdefault(found.table, set()).add(record.topic)
            self._collections.add(found.source.collection)
            if event.row_type is not None:
                version = _shape(found.table, event.row_type, tuple(event.key or ()))
                if event.row_type.doubtful:
                    self._doubtful.add(found.table)
            else:
                version = self._plain_shape(event, record)
                self._plain[found.table] = version.number
            if (found.table, version.number) not in self._versions:
                self._versions[found.table, version.number] = _version(version, is_plain=event.row_type is None)
            self._connectors[found.table] = found.source.connector

    def _plain_shape(self, event: DataEvent, record: TopicRecord) -> _Shape:
        """What is known of the columns of an event without a schema."""
        table = event.location.table
        described = self._described(table)
        expected = {} if described is None else {column.name: column.logical for column in described.columns}
        told = self._decoder.told(record, table, event.location.source.connector)
        declared = expected | {name: one.logical for name, one in told.items()}
        names: dict[str, None] = {}
        earlier = self._versions.get((table, self._plain.get(table, 0)))
        for name in (*(earlier.table.column_names if earlier else ()), *expected, *(event.after or event.before or ())):
            names[name] = None
        self._untyped[table] = names.keys() - declared.keys()
        key = tuple(event.key or (earlier and earlier.table.primary_key and earlier.table.primary_key.columns) or ())
        text = LogicalType(Kind.STRING)
        return _Shape(table, tuple((name, declared.get(name, text), name not in key) for name in names), key)


def _shape(table: TableName, row: RowType, key: tuple[str, ...]) -> _Shape:
    columns = tuple((c.name, c.logical, c.is_optional and c.name not in key) for c in row.columns)
    return _Shape(table, columns, key)


def _version(shape: _Shape, *, is_plain: bool) -> TableVersion:
    table = TableSchema(
        shape.table,
        tuple(Column.of(name, kind, is_nullable=null) for name, kind, null in shape.columns),
        Unique(f"{shape.table.name}_pkey", shape.key, shape.key) if shape.key else None,
        version=shape.number,
    )
    id_ = zlib.crc32(f"{shape.table.schema}\0{shape.table.name}".encode()) & 0x7FFFFFFF
    definition = table.to_definition() | ({_PLAIN: True} if is_plain else {})
    return TableVersion(id_, table, definition, shape.table)
