"""What a pipeline file says of conflicts, held against the tables it is said of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from penstock.apply.conflict_methods import EVERY_COLUMN, ConflictKind, ConflictRules, Method, Resolver, TableRules
from penstock.apply.target import TargetTable
from penstock.change import Op, TableName
from penstock.errors import OperatorError
from penstock.logical import Kind
from penstock.schema import Column, TableSchema
from penstock.text import nearest

_NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT)

_WITHOUT_ORDER = frozenset({"xid", "xid8", "cid", "tid", "aclitem"})
"""Types that can be told to be equal, and no more."""


def conflict_faults(
    conflicts: ConflictRules, tables: Mapping[TableName, TableSchema], *, where: str
) -> list[OperatorError]:
    """Say what the rules for conflicts ask of tables that these cannot do.

    Args:
        tables: Of the pipeline, by their names at the target, as they are there or will be made.
        where: The target.
    """
    return [
        OperatorError(f"apply.tables.{name}: {what}", where=where, do=do)
        for name, rules in conflicts.tables.items()
        for what, do in _faults(name, rules, conflicts, tables)
    ]


def _faults(
    name: TableName, rules: TableRules, conflicts: ConflictRules, tables: Mapping[TableName, TableSchema]
) -> Iterator[tuple[str, str]]:
    schema = tables.get(name)
    if schema is None:
        near = nearest(str(name), map(str, tables))
        yield f"the pipeline has no such table{near}", "write schema.table as the target calls it, after rules"
        return
    key = TargetTable(schema).key
    always = frozenset({Op.UPDATE, Op.DELETE})
    for column, ops in rules.compared.items():
        if column != EVERY_COLUMN and column not in schema.by_name:
            yield f"compare_old_values: {_no_column(column, schema)}", "correct the name"
        elif column in key.columns and ops != always:
            yield f"compare_old_values: {column!r} is part of the key, by which rows are found", "leave it out"
    for resolver in rules.resolvers:
        setting = f"conflicts, on {resolver.op}"
        unknown = [column for column in resolver.columns or () if column not in schema.by_name]
        if unknown:
            yield f"{setting}: {_no_column(unknown[0], schema)}", "correct the name"
            continue
        if resolver.row is ConflictKind.EXISTS and not key.is_declared:
            yield f"{setting}: the table has no key by which its rows could be found", "give it one"
        yield from ((f"{setting}: {what}", do) for what, do in _method_faults(resolver, schema))
        if resolver.row is ConflictKind.EXISTS and resolver.op is not Op.INSERT:
            others = [column for column in schema.column_names if column not in key.columns]
            unseen = conflicts.uncompared(name, others, resolver.op)
            yield from ((f"{setting}: {what}", do) for what, do in _never_called(resolver, others, unseen))


def _never_called(resolver: Resolver, others: Collection[str], unseen: Collection[str]) -> Iterator[tuple[str, str]]:
    """Say where nothing is found that a resolver decides; to overwrite is what is done then anyway."""
    columns = [column for column in others if resolver.has(column)]
    missed = [column for column in columns if column in unseen]
    # A difference is added to each number by itself; of other lists one column that is compared is enough.
    is_found = resolver.method is not Method.DELTA and len(missed) < len(columns)
    if resolver.method is not Method.OVERWRITE and missed and not is_found:
        yield (
            f"{resolver.method}: column {missed[0]!r} is not compared, so no conflict in it is found, and the change is"
            " made as it came",
            "have it compared: see compare_old_values and compare_key_only",
        )


def _method_faults(resolver: Resolver, schema: TableSchema) -> Iterator[tuple[str, str]]:
    if resolver.by is not None:
        if resolver.by not in schema.by_name:
            yield f"by: {_no_column(resolver.by, schema)}", "correct the name"
        elif not _has_order(schema.by_name[resolver.by]):
            type_ = schema.by_name[resolver.by].type
            yield f"by: column {resolver.by!r} is {type_}, whose values have no order", "name another column"
    if resolver.method is Method.DELTA:
        if resolver.columns is None:
            yield "delta needs the names of its columns", "write columns: [...]"
        for name in resolver.columns or ():
            if schema.by_name[name].logical.kind not in _NUMBERS:
                yield f"delta: column {name!r} is {schema.by_name[name].type}, which is not a number", "leave it out"


def _has_order(column: Column) -> bool:
    return column.is_comparable and column.base_type not in _WITHOUT_ORDER


def _no_column(name: str, schema: TableSchema) -> str:
    return f"the table has no column {name!r}{nearest(name, schema.column_names)}"
