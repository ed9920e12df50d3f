"""Change events as the source of a pipeline: nothing is set up, and nothing can be compared."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

from penstock.change import TableName
from penstock.database import DatabasePlan
from penstock.errors import ConfigError, OperatorError
from penstock.formats.debezium.envelope import ChangeLocation
from penstock.history import CaptureOrigin, Joined
from penstock.position import START, Anchor, Scn
from penstock.schema import TableSchema
from penstock.source_switch import SwitchPosition, SwitchSource
from penstock.sources.debezium.copy import SnapshotRows
from penstock.sources.debezium.history import Proof
from penstock.sources.debezium.log import Extent, LogLayout, Partition, RecordLog, names_of
from penstock.sources.debezium.scan import InTasks
from penstock.sources.debezium.source import DebeziumAccess, DebeziumSource
from penstock.sources.debezium.switch_point import find_point, first_needed
from penstock.sources.debezium.tables import Tables
from penstock.sources.debezium.tracker import Tracker
from penstock.sources.declared_tables import DeclaredTables
from penstock.stream import StoredCopy
from penstock.text import are, count

_MOST_NAMED = 10

_LOOKED_AT = 1_000
"""So many records at the beginning of a partition are looked at for the first one of a table: others are of none."""


@dataclass(frozen=True)
class Untyped:
    """What becomes of columns whose type neither events nor the target tell.

    Attributes:
        as_text: They are made text, since the pipeline file says so.
        by_target: The target's own tables are asked, which rules keep from being known.
    """

    as_text: bool = False
    by_target: bool = True

    def ways_out(self, at_target: str) -> str:
        """What a person can do about them; `at_target` is what would have the target tell."""
        ways = [f"{at_target} at the target first"] if self.by_target else []
        ways += [
            "write the types that the source's columns have as capture.debezium.columns",
            "have the connector write schemas (key.converter.schemas.enable and value.converter.schemas.enable)",
            "set capture.debezium.untyped to text, which makes every such column text",
        ]
        return "; or ".join(ways)


class DebeziumConnector:
    """Implements `pipeline.connectors.SourceWithCopies`: the connector's first snapshot is the first copy."""

    def __init__(
        self, log: RecordLog, layout: LogLayout, tables: Tables, name: str, *, untyped: Untyped = Untyped()
    ) -> None:
        """Read a log; nothing is touched yet.

        Args:
            name: Of the pipeline, under which offsets are committed.
            untyped: What becomes of columns whose type nothing tells.
        """
        self._untyped = untyped
        self._log = log
        self._layout = layout
        self._tables = tables
        self._name = name
        self._tracker = Tracker(log, layout, tables, f"penstock.{name}")

    @property
    def label(self) -> str:
        """Where the events are, named without secrets."""
        return self._log.label

    @property
    def access(self) -> DebeziumAccess:
        """How tasks reach them."""
        return DebeziumAccess(self._log, self._tables.settings, self._tables.skips)

    def match(self, patterns: Sequence[str]) -> Sequence[TableName]:
        """Return the tables that patterns mean, of those that events were found of.

        Raises:
            OperatorError: A pattern means no table, or there is no topic.
        """
        self._refuse_without_topics()
        return self._told.match(
            patterns,
            kind="connector",
            where=self.label,
            do="a table is known from its first event on; names are taken as the events spell them",
        )

    def describe(self, tables: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Describe tables as the newest events do, so that they take what earlier ones hold."""
        return self._told.describe(tables)

    def explain(self, tables: Sequence[TableName]) -> Sequence[str]:
        """No rule concerns any of the tables."""
        return ()

    def plan(self, tables: Sequence[TableName], row_triggers: Sequence[str]) -> DatabasePlan:
        """Plan nothing; notes say what the connector should be told, as far as its events show it."""
        plan = self._told.plan(tables, label=self.label)
        plan.notes.append("the rows of the connector's first snapshot are the first copy")
        plan.notes += self._tables.advice(tables)
        for name, columns in self._tables.untyped(tables).items():
            every = len(columns) == len(self._told.describe([name])[name].columns)
            what = f"events of {name} tell no types"
            if not every:
                what = f"events of {name} tell no type of column{'s' * (len(columns) > 1)} {', '.join(columns)}"
            if self._untyped.as_text:
                plan.notes.append(f"{what}: the target gets text, as capture.debezium.untyped says")
            else:
                do = self._untyped.ways_out("make the table" if every else "add what is missing")
                plan.faults.append(OperatorError(what, where=self.label, do=do))
        plan.faults += self._doubts(tables)
        for table, column, is_for_unsigned in self._tables.without_sign(tables):
            what = f"column {column!r} of {table} holds values below zero, and events do not say whether it is unsigned"
            write = f"capture.debezium.columns: {{{table}: {{{column}: 'bigint unsigned'}}}}"
            if is_for_unsigned:
                do = f"write {write}, or 'bigint' if it has a sign"
                what += ", for which the target's column is made"
                plan.faults.append(OperatorError(what, where=self.label, do=do))
            else:
                plan.notes.append(f"{what}: a BIGINT UNSIGNED comes so from 2^63 on; then write {write}")
        return plan

    def _doubts(self, tables: Sequence[TableName]) -> Iterator[OperatorError]:
        """Say which columns may be misread, and what to write about them."""
        for table, found in self._tables.doubts(tables).items():
            untold = [doubt for doubt in found if not doubt.why]
            if untold:
                names = ", ".join(doubt.column for doubt in untold)
                types = ", ".join(f"{doubt.column}: '{doubt.write}'" for doubt in untold)
                yield OperatorError(
                    f"events of {table} have no schemas, and do not say what the source has in column"
                    f"{'s' * (len(untold) > 1)} {names}: their numbers and base64 read in several ways",
                    where=self.label,
                    do="write the types that the source's columns have, as capture.debezium.columns:"
                    f" {{{table}: {{{types}}}}}; or name a file of events with schemas as"
                    " capture.debezium.schema_sample; or have the connector write schemas",
                )
            for column, why, write in found:
                if why:
                    what = f"column {column} of {table} is not what it is said to be: {why}"
                    yield OperatorError(what, where=self.label, do=write)

    def blueprint(self, tables: Sequence[TableName], *, types_of: Sequence[TableName] = ()) -> None:
        """Say nothing but what schemas say: there is no database that could be asked."""

    def has_capture(self) -> bool:
        """Make sure that there are topics; otherwise what it raises says what is in the way."""
        self._refuse_without_topics()
        return True

    def _refuse_without_topics(self) -> None:
        if self._log.extents():
            return
        prefix = self._tables.prefix
        what = f"no topic begins with '{prefix}.'" if prefix else "there is no topic of these names"
        begin = Counter(name.partition(".")[0] for name in self._log.others() if "." in name)
        those = ", ".join(f"{name}.* ({count(number, 'topic')})" for name, number in begin.most_common(_MOST_NAMED))
        raise OperatorError(
            f"{what}{f'; there {are(len(begin))} {those}' if those else ', or none that this user may see'}",
            where=self.label,
            do="correct capture.debezium.prefix, or start the connector",
        )

    def open_source(self) -> DebeziumSource:
        """Open what the driver follows changes by."""
        return DebeziumSource(self._log, self._tracker, self._tables, self._layout.transactions)

    def look_in(self, tasks: InTasks) -> None:
        """Have tasks look for transactions where much lies ahead; see `pipeline.connectors.LooksAhead`."""
        self._tracker.look_in(tasks)

    def position_of(self, text: str, *, option: str) -> Scn:
        """Read a position.

        Raises:
            ConfigError: It is none.
            OperatorError: The topics do not reach so far.
        """
        if not text.isdecimal():
            raise ConfigError(f"{option} takes a position here, not a time", do="`penstock status` shows positions")
        with closing(self.open_source()) as source:
            last = source.tick()
        if int(text) > last:
            raise OperatorError(
                f"{option} {text} lies behind the end of what is there, position {last}",
                where=self.label,
                do="name a point that is there",
            )
        return Scn(int(text))

    def copies_at(self, tables: Collection[TableName], position: Scn) -> Sequence[StoredCopy]:
        """Return the one copy of the tables: the connector's first snapshot, before all changes."""
        self._tables.survey(self._log)
        known = {version.table.name for version in self._tables.versions()}
        at: dict[Scn, set[TableName]] = {}
        for table in known.intersection(tables):
            at.setdefault(self._tracker.first_at(table), set()).add(table)
        return [
            StoredCopy(self._copy_id, Anchor(scn, ""), frozenset(names))
            for scn, names in sorted(at.items())
            if scn <= position
        ]

    def first_copies(self, tables: Collection[TableName]) -> Mapping[TableName, Scn]:
        """Return the start for each table that is known."""
        return {table: START for copy in self.copies_at(tables, START) for table in copy.tables}

    def stored(self, copy: StoredCopy, stop: threading.Event) -> SnapshotRows:
        """Where the rows of the snapshot lie, once the connector is through with it; see `SourceWithCopies.stored`."""
        self._tracker.start(START, is_new=False)
        rows = self._tracker.copy(stop)
        copied = Proof(copied=names_of(rows.read)) if copy.cut.scn == START else Proof()
        marked = replace(copy, cut=replace(copy.cut, mark=copied.text))
        return SnapshotRows(marked, rows.runs, self._tracker.partitions)

    def place(self) -> CaptureOrigin:
        """What a process is said to follow that follows these topics."""
        with closing(self.open_source()) as source:
            return source.origin

    def has_snapshot(self) -> bool:
        """Whether events of any table begin with a row of a snapshot; see `pipeline.connectors.EventSource`."""
        return any(
            self._begins_with_row(partition, extent)
            for partition, extent in self._log.extents().items()
            if partition.topic != self._layout.transactions
        )

    def _begins_with_row(self, partition: Partition, extent: Extent) -> bool:
        most = None if self._log.ends else _LOOKED_AT
        for record in islice(self._log.read(partition, extent.first, extent.end), most):
            found = self._tables.look(record)
            if isinstance(found, ChangeLocation) and self._tables.is_meant(str(found.table)):
                return found.is_snapshot
        return False

    def take_over(self, left: SwitchSource, *, wait_s: float) -> SwitchPosition:
        """Find the point where another reader of the same database was left; see `pipeline.connectors.EventSource`."""
        transactions = self._layout.transactions
        point = find_point(self._log, self._tables, transactions, left, wait_s=wait_s)
        needed = first_needed(self._log, self._tables, transactions, left)
        with closing(self._log.offsets(self._tracker.consumer)) as offsets:
            offsets.commit({partition: (offset, str(point.position)) for partition, offset in needed.items()})
        anchor = Anchor(point.position, self._log.topic_id(transactions))
        return SwitchPosition(Joined(self.place(), point.position, anchor), point.applied, self._copy_id)

    @property
    def _copy_id(self) -> str:
        return f"snapshot {self._log.identity()}"

    @property
    def _told(self) -> DeclaredTables:
        self._tables.survey(self._log)
        return DeclaredTables(self._tables.versions())
