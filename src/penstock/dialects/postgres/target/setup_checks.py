"""What setup refuses at a PostgreSQL target: names it cannot give, tables and types that would not keep all values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from penstock.apply.keys import row_key
from penstock.change import TableName
from penstock.database import DatabasePlan
from penstock.dialects.postgres.blueprint import Blueprint, read_made_of
from penstock.dialects.postgres.catalog import list_casts
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.fit import column_fit, retyping
from penstock.dialects.postgres.from_schema import made_with_text
from penstock.dialects.postgres.logical import in_postgres, is_finer
from penstock.dialects.postgres.names import cut, too_long
from penstock.errors import OperatorError
from penstock.fit import Fit, fit
from penstock.logical import Kind, of_sql_name
from penstock.schema import Column, TableSchema


def refuse_finer_keys(plan: DatabasePlan, missing: Sequence[TableSchema]) -> None:
    """Refuse tables that are to be made, and whose keys are finer than what this database keeps."""
    for table in missing:
        for fault in _finer_keys(table, plan.label):
            plan.refuse(table.name, fault)


def computed_otherwise(computed: Mapping[tuple[TableName, str], str], blueprint: Blueprint) -> Iterator[str]:
    """Say which computed columns are computed otherwise than at the source."""
    for (name, column), expression in computed.items():
        if expression != (at_source := blueprint.computed.get((name, column), expression)):
            yield (
                f"column {column!r} of table {name} is computed as {expression}, at the source as {at_source}:"
                " apply leaves it to the target, and `verify` will find other values"
            )


def taken_names(
    connection: Connection, missing: Sequence[TableName], where: str
) -> Iterator[tuple[TableName, OperatorError]]:
    """Say which tables cannot be made because something else has their name, which no statement of ours would undo."""
    rows = connection.execute(
        "SELECT n.nspname, w.name, coalesce(c.relkind::text, 't') FROM unnest(%s::text[], %s::text[]) w (schema, name)"
        " JOIN pg_namespace n ON n.nspname = w.schema"
        " LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name"
        # A table brings a type of its name; the server itself gives way with the name of an array.
        " LEFT JOIN pg_type t ON t.typnamespace = n.oid AND t.typname = w.name AND t.typrelid = 0"
        " AND t.typcategory <> 'A'"
        " WHERE c.relkind NOT IN ('r', 'p') OR (c.oid IS NULL AND t.oid IS NOT NULL)",
        [[name.schema for name in missing], [name.name for name in missing]],
    )
    for schema, name, kind in rows:
        table = TableName(schema, name)
        yield (
            table,
            OperatorError(
                f"table {table} cannot be made: {_KINDS.get(kind, 'something else')} has that name",
                where=where,
                do=f'rename it there, or drop it; or give the table another name: rules: {{tables: {{"{table}":'
                " {to: OTHER.NAME}}}; or take it out of capture.tables",
            ),
        )


_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "f": "a foreign table",
    "c": "a type",
    "t": "a type",
}


def _finer_keys(table: TableSchema, where: str) -> Iterator[OperatorError]:
    """Say which columns of a key the table that setup makes would round, so that two rows would have one key."""
    keys = {name for key in table.all_uniques for name in key.columns}
    columns = [column.name for column in table.columns if column.name in keys and is_finer(column)]
    if columns:
        named = ", ".join(map(repr, columns))
        yield OperatorError(
            f"column{'s' * (len(columns) > 1)} {named} of table {table.name}, of a key, may have decimals of a second"
            " beyond the sixth: values that differ would become the same",
            where=where,
            do=f"make the table with {'it' if len(columns) == 1 else 'them'} as text: {made_with_text(table, columns)}",
        )


def long_names(
    connection: Connection,
    source: Mapping[TableName, TableSchema],
    existing: Mapping[TableName, TableSchema],
    where: str,
) -> Iterator[tuple[TableName, OperatorError]]:
    """Say which names of which tables the database would cut, with the rule that gives another one."""

    def lacking(table: TableSchema) -> list[str]:
        there = existing.get(table.name)
        return [name for name in table.column_names if there is None or name not in there.by_name]

    tables = [name for name in source if name not in existing]
    parts = [part for name in tables for part in (name.schema, name.name)]
    sizes = too_long(connection, [*parts, *(name for table in source.values() for name in lacking(table))])
    if not sizes:
        return
    # Rules go by the source's names, and here those of the target are known: mostly they are the same.
    rule = "give it a shorter one by a rule for its table at the source: rules: {tables: {"
    for name in tables:
        for part in (name.schema, name.name):
            if part in sizes:
                what = f"table {name} cannot be made: {cut(part, sizes[part])}"
                yield name, OperatorError(what, where=where, do=f'{rule}"{name}": {{to: SHORTER.NAME}}}}}}')
    for name, table in source.items():
        for column in lacking(table):
            if column in sizes:
                what = f"table {name} cannot have one of its columns: {cut(column, sizes[column])}"
                do = f'{rule}"{name}": {{rename: {{"{column}": SHORTER}}}}}}}}'
                yield name, OperatorError(what, where=where, do=do)


def check_types(
    connection: Connection, plan: DatabasePlan, blueprint: Blueprint, tables: Mapping[TableName, TableSchema]
) -> None:
    """Refuse tables of a type that is here by the same name, and would make others of values."""
    there = read_made_of(connection, [name for name, statement, _ in blueprint.types if statement])
    unlike: dict[str, str] = {}
    # Those that others are made of come first.
    for type_, told in blueprint.made_of.items():
        made_of = there.get(type_, told)
        if len(made_of) != len(told) or not all(map(_holds, made_of, told)):
            unlike[type_] = f"type {type_} is made of {', '.join(made_of)} here, and at the source of {', '.join(told)}"
        elif (part := next((one for one in map(_element, told) if one in unlike), None)) is not None:
            unlike[type_] = unlike[part]
    do = "make it as the source has it, or give the columns another type"
    for name, table in tables.items():
        types = [_element(column.type) for column in table.columns]
        for what in dict.fromkeys(unlike[type_] for type_ in types if type_ in unlike):
            plan.refuse(
                name, OperatorError(f"{what}: values would be rounded, cut or misread", where=plan.label, do=do)
            )


def _element(type_: str) -> str:
    return type_.removesuffix("[]")


def _holds(there: str, told: str) -> bool:
    """Whether a part of a type keeps or refuses what another one holds; types of users are looked at for themselves."""
    if there == told:
        return True
    one, other = of_sql_name(there), of_sql_name(told)
    return one is not None and other is not None and fit(one, other) in (Fit.WHOLE, Fit.REFUSED)


def check_tables(
    connection: Connection,
    plan: DatabasePlan,
    source: Mapping[TableName, TableSchema],
    existing: Mapping[TableName, TableSchema],
    *,
    defaults: Mapping[tuple[TableName, str], str],
    keyed: Collection[TableName],
) -> None:
    """Compare tables that exist with what changes to them will need, and note what they refer to."""
    casts = list_casts(connection)
    for name, table in existing.items():
        _check_table(plan, source[name], table, defaults, casts, needs_key=name not in keyed)
        plan.references += [
            (name, key.parent, f"foreign key {key.name} of {name} to {key.parent}")
            for key in table.foreign_keys
            if key.parent != name
        ]


def _check_table(
    plan: DatabasePlan,
    source: TableSchema,
    target: TableSchema,
    defaults: Mapping[tuple[TableName, str], str],
    casts: Collection[tuple[str, str]],
    *,
    needs_key: bool,
) -> None:
    """Compare a table that exists with what changes to it will need.

    Args:
        defaults: Those of the source's columns.
        casts: Which types can be cast to which here.
    """

    def fault(what: str, do: str) -> None:
        plan.refuse(name, OperatorError(what, where=plan.label, do=do))

    name = source.name
    told = source.by_name
    source = in_postgres(source)
    alter = f"ALTER TABLE {quote(name.schema, name.name)}"
    for column in source.columns:
        quoted = quote(column.name)
        there = target.by_name.get(column.name)
        if there is None:
            fault(
                f"table {name} lacks column {column.name!r}",
                f"{alter} ADD COLUMN {quoted} {column.type}{defaults.get((name, column.name), '')};"
                " then give the rows that are there the values that the source's have, if it filled them."
                " If the source has renamed a column, rename it here instead",
            )
        elif there.is_generated and not column.is_generated:
            fault(
                f"column {column.name!r} of table {name} is generated, at the source it is not",
                f"make it a plain column: {alter} ALTER COLUMN {quoted} DROP EXPRESSION, if its values are stored",
            )
        else:
            is_key = any(column.name in key.columns for key in source.all_uniques)
            _check_type(plan, name, there, column, told[column.name], is_key=is_key, casts=casts)
    if needs_key and row_key(source).is_declared and not row_key(target).is_declared:
        key = ", ".join(quote(column) for column in row_key(source).columns)
        fault(
            f"table {name} has no primary or unique key, at the source it has",
            f"{alter} ADD PRIMARY KEY ({key})",
        )
    if target.fires_triggers:
        plan.notes.append(f"table {name} has triggers that fire for apply too; its changes go row by row")
    for exclusion in target.exclusions:
        if exclusion.is_deferrable and not exclusion.columns:
            plan.notes.append(f"deferrable constraint {exclusion.name!r} of {name} cannot be checked by apply")


def _check_type(
    plan: DatabasePlan,
    table: TableName,
    there: Column,
    column: Column,
    told: Column,
    *,
    is_key: bool,
    casts: Collection[tuple[str, str]],
) -> None:
    """Say what a column that exists cannot keep of the source's values.

    Args:
        column: The source's column as this database would make it, and as it was `told`.
        is_key: A key of the source's has it.
        casts: Which types can be cast to which here.
    """
    found = column_fit(there, column, told)
    if found is Fit.WHOLE:
        return
    what = f"column {column.name!r} of table {table} is {there.type}, at the source it is {column.type}"
    if is_finer(told):
        what = f"column {column.name!r} of table {table} is {there.type}, at the source it may have decimals of a"
        what += " second beyond the sixth"
    if found is Fit.REFUSED:
        element = there.logical.element or there.logical
        blanks = "; blanks at the end that do not fit are cut" if element.kind is Kind.STRING else ""
        plan.notes.append(f"{what}: values that do not fit go to the error queue{blanks}")
    elif is_finer(told) and found is Fit.CUT and not is_key and there.type == column.type:
        text = retyping(table, column.name, "text")
        plan.notes.append(f"{what}, and this database rounds them; a column of type text keeps them: {text}")
    elif is_finer(told) and found is Fit.CUT and is_key:
        do = f"keep them as text: {retyping(table, column.name, 'text')}"
        error = OperatorError(f"{what}: values of a key that differ would become the same", where=plan.label, do=do)
        plan.refuse(table, error)
    else:
        lost = ": values would be rounded or cut without a word" if found is Fit.CUT else ""
        alter = retyping(table, column.name, column.type, has_cast=_has_cast(there, column, casts))
        do = f"give it the source's type, or one that holds all its values: {alter}"
        plan.refuse(table, OperatorError(f"{what}{lost}", where=plan.label, do=do))


def _has_cast(there: Column, column: Column, casts: Collection[tuple[str, str]]) -> bool:
    one, other = _element(there.base_type), _element(column.base_type)
    kinds = {(logical.element or logical).kind for logical in (there.logical, column.logical)}
    return one == other or Kind.STRING in kinds or (one, other) in casts
