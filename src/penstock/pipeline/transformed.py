"""A source seen through rules: to all that follows, tables and rows are what the output is to have.

So the ledger, the lanes, the error queue and the comparison know tables by their names at the target, and nothing of
the rules.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from itertools import groupby

from penstock.change import NO_VERSION, TableName
from penstock.database import DatabasePlan, NativeForm, Renamed, Uncaptured
from penstock.dialects.sessions import WriteFreeze
from penstock.errors import OperatorError
from penstock.pipeline.connectors import PlainDatabase, SourceConnector, SourceWithCopies
from penstock.pipeline.transformed_access import (
    TransformedAccess,
    TransformedTable,
    TransformedVersion,
)
from penstock.position import Scn
from penstock.rules.ruleset import RuleSet
from penstock.rules.table_rule import TableRule
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk
from penstock.snapshot.instantiate import CopyOrigin, HeldSnapshot
from penstock.stream import Source, StoredCopy, TableVersion
from penstock.text import printable

_SHAPES = 1 << 16
"""A version of a table at the source, times this, plus a number for what rules make of it."""

_MOST = (1 << 31) - 1
"""The highest version that the change stream and the ledger can hold."""


class TransformedConnector:
    """Implements `connectors.SourceConnector`."""

    def __init__(self, inner: SourceConnector, rules: RuleSet) -> None:
        """See a source through rules."""
        self._inner = inner
        self._rules = rules
        self.has_capture, self.position_of = inner.has_capture, inner.position_of

    @property
    def untransformed(self) -> SourceConnector:
        """The source itself."""
        return self._inner

    @property
    def label(self) -> str:
        """The database, named without secrets."""
        return self._inner.label

    @property
    def access(self) -> TransformedAccess:
        """How tasks reach it."""
        return TransformedAccess(self._inner.access)

    def match(self, patterns: Sequence[str]) -> Sequence[TableName]:
        """Return what becomes of the tables that patterns mean.

        Raises:
            ConfigError: Two of them would have one name.
            OperatorError: The rules leave none of them.
        """
        matched = self._inner.match(patterns)
        taken = [table for table in matched if self._rules.takes(table)]
        if not taken:
            raise OperatorError(
                f"the rules leave out each of the {len(matched)} tables that capture.tables means",
                where=self.label,
                do="see rules.include and rules.exclude in the pipeline file",
            )
        self._rules.refuse_collisions(taken)
        return sorted(self._rules.target_name(table) for table in taken)

    def describe(self, tables: Iterable[TableName]) -> Mapping[TableName, TransformedTable]:
        """Describe what becomes of tables as they are now."""
        origins = {name: table for table in tables for name in self._rules.source_names(table)}
        found = self._inner.describe(origins)
        self._rules.refuse_collisions(found)
        earlier = self._earlier(found)
        return {
            origins[name]: _transformed(self._rules, table, is_current=name not in earlier)
            for name, table in sorted(found.items())
        }

    def _earlier(self, _described: Mapping[TableName, TableSchema]) -> Collection[TableName]:
        """Those of some tables that are not described as they are now."""
        return ()

    def explain(self, tables: Sequence[TableName]) -> Sequence[str]:
        """Say what rules make of tables, a line for each that they concern."""
        return [_explained(table, table.rule) for table in self.describe(tables).values() if table.rule is not None]

    def plan(self, tables: Sequence[TableName], row_triggers: Sequence[str]) -> DatabasePlan:
        """Plan the capture of the tables that these become of, and say what becomes of them."""
        described = self.describe(tables)
        plan = self._inner.plan([table.captured.name for table in described.values()], row_triggers)
        plan.name_tables(self._rules.target_name)
        captured = {table.captured.name: table.captured for table in described.values()}
        earlier = self._earlier(captured)
        for name, table in captured.items():
            plan.notes += self._rules.warnings(table, is_current=name not in earlier)
        return plan

    def blueprint(self, tables: Sequence[TableName], *, types_of: Sequence[TableName] = ()) -> NativeForm | None:
        """Say how to make those of the tables that no rule concerns, and the types of all of them."""
        origins = {name: table.captured.name for name, table in self.describe(tables).items()}
        # A table may be called as one that patterns mean, too, without being it.
        plain = [name for name, origin in origins.items() if origin == name and self._plain(name)]
        others = [origin for name, origin in origins.items() if name not in plain]
        return self._inner.blueprint(plain, types_of=[*types_of, *others])

    def open_source(self) -> TransformedSource:
        """Open what the driver follows changes by."""
        return TransformedSource(self._inner.open_source(), self._rules)

    def captured_name(self, table: TableName) -> TableName:
        """Return the table at the source that becomes one of the output."""
        names = self._rules.source_names(table)
        if len(names) > 1:
            names = [described.captured.name for described in self.describe([table]).values()]
        return names[0] if names else table

    def _origins(self, tables: Iterable[TableName]) -> list[TableName]:
        """The tables of the source that become these."""
        return [name for table in tables for name in self._rules.source_names(table)]

    def _plain(self, table: TableName) -> bool:
        """Whether a table of the source, and of the output, is the same in both."""
        return self._rules.takes(table) and not self._rules.concerns(table)


class TransformedDatabase(TransformedConnector):
    """Implements `connectors.DatabaseSource`; what names no table is done by the database itself."""

    _inner: PlainDatabase

    def __init__(self, inner: PlainDatabase, rules: RuleSet) -> None:
        """See a database through rules."""
        super().__init__(inner, rules)
        self.setup, self.removal, self.release = inner.setup, inner.removal, inner.release
        self.remove_consumer, self.log_hold = inner.remove_consumer, inner.log_hold
        self.hold_watch = inner.hold_watch
        self.other_pipeline = inner.other_pipeline
        self.history_fault, self.identity = inner.history_fault, inner.identity
        self.copies_asked, self.forget_asked = inner.copies_asked, inner.forget_asked
        self.lock_run, self.lock_watch = inner.lock_run, inner.lock_watch
        self.follow, self.marks_of_ddl = inner.follow, inner.marks_of_ddl
        self.sequence_reader, self.compared = inner.sequence_reader, inner.compared

    def parts(self, patterns: Sequence[str], leaves_out: Callable[[TableName], bool] = lambda _: False) -> NativeForm:
        """What the tables that patterns mean, and no rule concerns, have gained without their definition changing."""
        return self._inner.parts(patterns, lambda table: leaves_out(table) or not self._plain(table))

    def post_data(self, tables: Sequence[TableName]) -> NativeForm:
        """What becomes of what tables have that applying does not need."""
        described = self.describe(tables)
        return self._inner.post_data_as([_renamed(table) for table in described.values()])

    def write_freeze(self, tables: Sequence[TableName]) -> WriteFreeze:
        """Return what watches that nothing writes to the tables that these become of."""
        return self._inner.write_freeze([table.captured.name for table in self.describe(tables).values()])

    def replaced_tables(self) -> Sequence[TableName]:
        """What becomes of tables that were made anew under a captured name, and are not captured yet."""
        return [self._rules.target_name(name) for name in self._inner.replaced_tables() if self._rules.takes(name)]

    def not_captured(self, patterns: Sequence[str]) -> Sequence[Uncaptured]:
        """Tables that patterns mean, and whose changes are not captured, with the reason."""
        found = [one for one in self._inner.not_captured(patterns) if self._rules.takes(one.table)]
        return [replace(one, table=self._rules.target_name(one.table)) for one in found]

    def origin(self) -> CopyOrigin:
        """The source of a first copy."""
        return TransformedCopyOrigin(self._inner.origin(), self)

    def beside(self, tables: Iterable[TableName]) -> NativeForm:
        """What rows of tables may refer to, and no table holds."""
        return self._inner.beside(self._origins(tables))


class TransformedRecording(TransformedConnector):
    """Implements `connectors.SourceWithCopies`."""

    _inner: SourceWithCopies

    def _earlier(self, described: Mapping[TableName, TableSchema]) -> Collection[TableName]:
        """Those of some tables that have a later version: what changes to come name may not be there yet."""
        with closing(self._inner.open_source()) as stream:
            versions = [version.table for version in stream.tables() if version.table.name in described]
        return {table.name for table in versions if table.version > described[table.name].version}

    def copies_at(self, tables: Collection[TableName], position: Scn) -> Sequence[StoredCopy]:
        """Return what becomes of the newest whole copy of each table at or before a position, oldest first."""
        found = self._inner.copies_at(self._origins(tables), position)

        def named(tables: Collection[TableName]) -> frozenset[TableName]:
            return frozenset(self._rules.target_name(table) for table in tables)

        return [replace(copy, tables=named(copy.tables), dropped=named(copy.dropped)) for copy in found]

    def first_copies(self, tables: Collection[TableName]) -> Mapping[TableName, Scn]:
        """Return the position from which on the source has the rows of each table; those without are left out."""
        found = self._inner.first_copies(self._origins(tables))
        return {self._rules.target_name(table): position for table, position in found.items()}

    def stored(self, copy: StoredCopy, stop: threading.Event) -> CopyOrigin:
        """What a copy is read from; see `SourceWithCopies.stored`."""
        origins = {self.captured_name(table): table for table in copy.tables}
        stored = self._inner.stored(replace(copy, tables=frozenset(origins)), stop)
        return TransformedCopyOrigin(stored, self, has_ranges=False)


class TransformedSource:
    """Implements `stream.Source`; but for its tables it is the source itself, so a slice may say more than is read."""

    def __init__(self, inner: Source, rules: RuleSet) -> None:
        """See a source through rules."""
        self._inner = inner
        self._rules = rules
        self.open, self.close, self.wait = inner.open, inner.close, inner.wait
        self.join, self.hold_against = inner.join, inner.hold_against
        self.next_slice, self.tick, self.backlog = inner.next_slice, inner.tick, inner.backlog
        self.free, self.seen, self.consumers = inner.free, inner.seen, inner.consumers
        self.count_tables = inner.count_tables

    def tables(self) -> Sequence[TransformedVersion]:
        """Return what becomes of every version of every table that a change may name, oldest first.

        Those that are not processed are among them, so that their changes are known when they are met, under a name
        that no table has.
        """
        versions = self._inner.tables()
        newest = {version.id: version for version in sorted(versions, key=lambda version: version.table.version)}
        return [self._version(version, is_current=version is newest[version.id]) for version in versions]

    def _version(self, version: TableVersion, *, is_current: bool) -> TransformedVersion:
        if not self._rules.takes(version.root):
            name = TableName("", str(version.table.name))
            nobody = replace(version.table, name=name)
            return TransformedVersion(
                version.id,
                nobody,
                nobody.to_definition(),
                name,
                version,
                None,
                is_taken=False,
                called=self._rules.target_name(version.root),
                is_gone=version.is_gone,
            )
        table = _transformed(self._rules, version.table, version.root, is_current=is_current)
        root = self._rules.target_name(version.root)
        definition = version.definition if table.rule is None else table.to_definition()
        return TransformedVersion(
            version.id, table, definition, root, version, table.rule, is_taken=True, is_gone=version.is_gone
        )


class TransformedCopyOrigin:
    """Implements `snapshot.instantiate.CopyOrigin`."""

    def __init__(self, inner: CopyOrigin, connector: TransformedConnector, *, has_ranges: bool = True) -> None:
        """Copy what becomes of the tables of `inner`, as the connector says.

        Args:
            has_ranges: The pieces of a table are ranges of its key, which may be compared, too.
        """
        self._inner = inner
        self._connector = connector
        self._has_ranges = has_ranges

    def hold_snapshot(self) -> AbstractContextManager[HeldSnapshot]:
        """Take a snapshot, cut the log at it, and keep it readable for other sessions until the end."""
        return self._inner.hold_snapshot()

    def cut_into_chunks(self, tables: Sequence[TableName]) -> list[Chunk]:
        """Cut each of the tables into pieces; one stays whole where a range of keys is none at the target."""
        ruled = self._connector.describe(tables)
        origins = {self._connector.captured_name(table): table for table in tables}
        chunks = []
        for name, found in groupby(self._inner.cut_into_chunks(list(origins)), key=lambda chunk: chunk.table):
            table = origins[name]
            pieces = [replace(chunk, table=table) for chunk in found]
            rule = ruled[table].rule if table in ruled else None
            if self._has_ranges and rule is not None and not rule.keeps_key and len(pieces) > 1:
                sizes = [piece.size_bytes for piece in pieces]
                whole = None if None in sizes else sum(size for size in sizes if size is not None)
                pieces = [Chunk(table, 0, size_bytes=whole)]
            chunks += pieces
        return chunks

    def can_resume(self, table: TableName, snapshot: str) -> bool:
        """Whether rows can be put back to what they were at a snapshot."""
        return self._inner.can_resume(self._connector.captured_name(table), snapshot)


def _transformed(
    rules: RuleSet, table: TableSchema, root: TableName | None = None, *, is_current: bool = True
) -> TransformedTable:
    """What becomes of a version of a table; `root` is the one it is a partition of."""
    rule = rules.rule(table, replace(table, name=root or table.name), is_current=is_current)
    if rule is None:
        return TransformedTable.of(table, replace(table, foreign_keys=rules.references(table)), None)
    rule = rule.numbered(_number(table.version, replace(rule.table, version=NO_VERSION)))
    return TransformedTable.of(table, rule.table, rule)


def _number(version: int, shape: TableSchema) -> int:
    """The version of what rules make of a version.

    Rules may change between two runs, and the source's version stays: an entry of the error queue is read with the
    definition that it was made with.
    """
    number = version * _SHAPES + zlib.crc32(repr(shape).encode()) % _SHAPES
    if number <= _MOST:
        return number
    # As in an archive that was published through rules itself.
    return zlib.crc32(repr((version, shape)).encode()) % _MOST + 1


def _renamed(table: TransformedTable) -> Renamed:
    if table.rule is None:
        return Renamed(table.captured.name, table.name)
    has_step = table.rule.step is not None
    return Renamed(table.captured.name, table.name, table.rule.columns.names, has_step=has_step)


def _explained(table: TransformedTable, rule: TableRule) -> str:
    """What becomes of a table, in a few words."""
    source = table.captured
    renamed = [f"{name} -> {new}" for name, new in rule.columns.names.items() if name != new]
    parts = [
        f"without {', '.join(rule.columns.dropped)}" if rule.columns.dropped else "",
        f"with {', '.join(column.name for column in table.columns[len(rule.columns.names) :])}" if rule.added else "",
        f"rows where {rule.row_filter.sql}" if rule.row_filter is not None else "",
        f"only {', '.join(sorted(rule.operations))}" if rule.operations is not None else "",
        f"step {rule.step.name}" if rule.step is not None else "",
    ]
    said = "; ".join([*renamed, *filter(None, parts)])
    return printable(f"{source.name} -> {table.name}{f': {said}' if said else ''}")


def untransformed(source: SourceConnector) -> SourceConnector:
    """Return what a source is without the rules that it may be seen through."""
    return source.untransformed if isinstance(source, TransformedConnector) else source
