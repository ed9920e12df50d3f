"""DDL of tables that are not copied yet: the target follows it before their rows are copied, not at its place.

A copy is as of now, and apply passes over all changes before it. So what was altered since setup is carried out first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock import change as c
from penstock.apply.apply_errors import ApplyError
from penstock.apply.ddl import DdlPolicy, is_drop, is_rename
from penstock.apply.ddl_applier import DdlApplier
from penstock.apply.group import COLUMNS, whole_group
from penstock.apply.handlers.runner import Handlers
from penstock.apply.ledger import ProcessState
from penstock.apply.target import TargetCatalog, TargetTable
from penstock.change import Change, Op, TableName, Transaction
from penstock.errors import TableError
from penstock.pipeline.connectors import DatabaseSource, PipelineEnds
from penstock.position import START, Limit
from penstock.stream import Slice, Source, TableVersion, root_versions


@dataclass(frozen=True)
class DdlBeforeCopy:
    """Has tables at the target follow what was done to those of the source after setup."""

    ends: PipelineEnds
    database: DatabaseSource

    def follow(
        self, state: ProcessState, versions: Sequence[TableVersion], tables: Collection[TableName]
    ) -> Iterator[TableError]:
        """Follow the DDL of tables that are about to be copied, where `apply.ddl` says so; yield what is in the way."""
        altered = self._altered(versions, tables)
        if not altered:
            return
        of = {version.number: version.id for version in versions}
        ids = {version.id: name for name, version in root_versions(versions).items() if name in altered}
        found: dict[TableName, list[tuple[Transaction, Change]]] = {name: [] for name in altered}
        with closing(self.database.open_source()) as stream:
            for transaction in self._with_ddl(stream, state, versions, altered):
                for change in transaction.changes:
                    # Another table may have had the name before.
                    name = ids.get(of.get(_version(change), -1))
                    if name is not None and not is_drop(change) and not is_rename(change):
                        found[name].append((transaction, change))
        for name, changes in sorted(found.items()):
            try:
                self._carry_out(name, changes)
            except ApplyError as exc:
                yield TableError(
                    f"{name} was altered at the source after setup, and the target cannot follow: {exc.what}",
                    where=self.ends.target.label,
                    do="a run tries again once that is done",
                    table=(name.schema, name.name),
                )

    def _altered(self, versions: Sequence[TableVersion], tables: Collection[TableName]) -> set[TableName]:
        """Those of the tables that have had another version, and are not at the target as they are now."""
        rules = self.ends.apply.ddl_rules
        newest = root_versions(versions)
        times = Counter(version.id for version in versions)
        some = {name for name in tables if times[newest[name].id] > 1 and rules.of(name) is DdlPolicy.APPLY}
        if not some:
            return set()
        there = self.ends.target.describe(some)
        now = {name: {(one.name, one.type) for one in newest[name].table.columns} for name in some}
        return {name for name in some & there.keys() if {(c.name, c.type) for c in there[name].columns} != now[name]}

    def _with_ddl(
        self, stream: Source, state: ProcessState, versions: Sequence[TableVersion], tables: Collection[TableName]
    ) -> Iterator[Transaction]:
        """Yield the DDL of each transaction of the log that has any."""
        reader = self.database.access.reader(self.ends.config.capture.name, versions, follows=tables)
        end, after, anchor = stream.tick(), state.low_watermark, state.history.anchor
        while (part := stream.next_slice(after, Limit(), until=end, anchor=anchor)) is not None:
            piece: Slice = part.until_ddl()
            if piece.has_ddl:
                batches = [_only_ddl(batch.select(COLUMNS)) for batch in reader.read(piece, with_key=False)]
                # Rules may leave all of it out.
                if any(batch.num_rows for batch in batches):
                    yield from whole_group(pa.Table.from_batches(batches)).transactions()
            after, anchor = piece.end, piece.anchor

    def _carry_out(self, name: TableName, changes: Sequence[tuple[Transaction, Change]]) -> None:
        """Carry out what was done to a table, all of it or nothing."""
        with self.ends.target.error_queue().retry_session() as session, session.transaction():
            handlers = Handlers(self.ends.config.handlers, session.handler_sql)
            applier = DdlApplier(session, self.ends.apply.ddl_rules, handlers)
            schema = session.describe_anew(name)
            assert schema is not None, "it was there a moment ago"
            catalog = TargetCatalog({name: TargetTable(schema)}, {name: START})
            for number, (transaction, change) in enumerate(changes):
                applier.begin()
                catalog = applier.carry_out(number, [change], transaction, catalog)
            handlers.end()


def _only_ddl(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(batch[c.OP], Op.DDL))


def _version(change: Change) -> int:
    return int((change.before or {}).get("is_version") or -1)
