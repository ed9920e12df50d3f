"""DDL at the source that the target does not follow, by name: what differs between two versions of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.apply.ddl import DdlPolicy, DdlRules
from penstock.change import TableName
from penstock.schema import TableSchema
from penstock.stream import TableVersion


def not_followed(
    before: Sequence[TableVersion], now: Sequence[TableVersion], ddl: DdlRules
) -> Iterator[tuple[TableName, tuple[str, ...]]]:
    """Yield the tables that new versions came of, and what of these the target does not follow, in words.

    Unique and foreign keys are never followed. Where a table follows, `NewParts` names those that the target lacks,
    with the line that makes them, and only those that the source gave up are named here. Columns are named where no
    table follows, and so no change tells of them.

    Args:
        before: The versions that were known; `now` has them, too.
    """
    known = {version.id: version for version in before}
    seen = {(version.id, version.table.version) for version in before}
    for version in sorted(now, key=lambda version: version.table.version):
        last = known.get(version.id)
        known[version.id] = version
        if (version.id, version.table.version) in seen or last is None or version.is_partition or version.is_gone:
            continue
        words = [] if ddl.is_followed else [*_columns(last.table, version.table)]
        words += _keys(version.table, last.table, "dropped")
        if ddl.of(version.table.name) is not DdlPolicy.APPLY:
            words += _keys(last.table, version.table, "made")
        if words:
            yield version.table.name, tuple(words)


def _columns(was: TableSchema, now: TableSchema) -> Iterator[str]:
    for name in was.by_name.keys() - now.by_name.keys():
        yield f"column {name} dropped"
    for column in now.columns:
        if column.name not in was.by_name:
            yield f"column {column.name} added"
        elif column.type != was.by_name[column.name].type:
            yield f"column {column.name} made {column.type}"


def _keys(without: TableSchema, table: TableSchema, verb: str) -> Iterator[str]:
    """Name the keys of a table that another version of it is without."""
    uniques = {key.columns for key in without.all_uniques}
    for key in table.all_uniques:
        if key.columns not in uniques:
            yield f"unique key ({', '.join(key.columns)}) {verb}"
    parents = {(key.columns, key.parent) for key in without.foreign_keys}
    for reference in table.foreign_keys:
        if (reference.columns, reference.parent) not in parents:
            yield f"foreign key ({', '.join(reference.columns)}) to {reference.parent} {verb}"
