"""What becomes of the source's values in a column of PostgreSQL's, by more than logical types tell."""

from __future__ import annotations

import re
from dataclasses import replace

from penstock.change import TableName
from penstock.dialects.postgres.casts import text_sql
from penstock.dialects.postgres.connection import quote
from penstock.dialects.postgres.logical import in_postgres, is_finer, is_ours
from penstock.fit import Fit, fit, is_cast_otherwise
from penstock.logical import Kind, LogicalType
from penstock.schema import Column, TableSchema

_SHORT_NAMES = ("name", '"char"')
"""Types that keep the first bytes of a text, and say nothing of the rest."""

_NOT_WIDER = ("oid", "money")
"""Types that stand for numbers, and do not take each of them."""


def column_fit(there: Column, column: Column, told: Column) -> Fit:
    """Say what becomes of the values of a column.

    Args:
        there: The target's column.
        column: The source's as this database would make it, and as it was `told`.
    """
    if there.type == column.type and not is_finer(told):
        return Fit.WHOLE
    by_kind = fit(there.logical, told.logical)
    if there.base_type == column.base_type:
        # Of one type all values are of one sort, whatever the logical types call it. A domain may check them, and what
        # the length of somebody's own type means is not known.
        same = Fit.WHOLE if by_kind is Fit.NONE else by_kind
        least = Fit.REFUSED if there.is_domain or not there.is_builtin else Fit.WHOLE
        return max(same, least, _by_spelling(there.type, column.type))
    if by_kind is not Fit.NONE and there.base_type in _SHORT_NAMES:
        return Fit.CUT
    if not is_ours(told):
        if there.logical.is_padded and told.logical.kind is Kind.STRING and told.logical.length is None:
            # Events call every text a string, and do not say which are padded.
            by_kind = Fit.REFUSED
        return max(by_kind, _by_spelling(there.type, column.type))
    # Of two types of its own this database may write one value differently, and refuses what does not fit: only what
    # is wider stands for the source's type.
    # A numeric may be NaN, which no integer is.
    can_be_wider = there.base_type not in _NOT_WIDER and there.logical.kind is not Kind.JSON
    can_be_wider &= not (column.base_type == "numeric" and there.is_integer)
    can_be_wider &= not is_cast_otherwise(there.logical, told.logical)
    return by_kind if can_be_wider and max(by_kind, _by_spelling(there.type, column.type)) is Fit.WHOLE else Fit.NONE


def retyping(table: TableName, column: str, type_: str, *, has_cast: bool = True) -> str:
    """The statement that gives a column a type; without a cast, by way of the text that its values have."""
    quoted = quote(column)
    alter = f"ALTER TABLE {quote(table.schema, table.name)}"
    by = "" if has_cast else "::text"
    return f"{alter} ALTER COLUMN {quoted} TYPE {type_} USING {quoted}{by}::{type_}"


def widening(table: TableSchema, told: Column) -> str | None:
    """The statement that has a column of the target hold all that the source's column, `told`, may; None without one.

    A time of day may be of more than a day at the source.
    """
    there, column = table.by_name[told.name], in_postgres(TableSchema(table.name, (told,))).columns[0]
    type_ = column.type
    if column_fit(there, column, told) is Fit.WHOLE:
        if there.logical.kind is not Kind.TIME:
            return None
        type_ = "interval"
    return retyping(table.name, told.name, type_)


_LENGTH = re.compile(r"(?:bit|bit varying)\((\d+)\)")
_INTERVAL = re.compile(r"interval(?P<fields> [a-z ]+?)?(?:\((?P<digits>\d)\))?")


def _by_spelling(there: str, column: str) -> Fit:
    """What lengths and fields say that logical types leave out."""
    there, column = there.removesuffix("[]"), column.removesuffix("[]")
    if there == column:
        return Fit.WHOLE
    if there.startswith("bit"):
        most, given = _LENGTH.fullmatch(there), _LENGTH.fullmatch(column)
        is_fixed = not there.startswith("bit varying")
        if most is None:
            return Fit.WHOLE
        is_held = given is not None and int(given[1]) <= int(most[1]) and not is_fixed
        return Fit.WHOLE if is_held else Fit.REFUSED
    if (target := _INTERVAL.fullmatch(there)) is not None:
        source = _INTERVAL.fullmatch(column)
        keeps_fields = target["fields"] is None
        digits = 6 if source is None or source["digits"] is None else int(source["digits"])
        return Fit.WHOLE if keeps_fields and int(target["digits"] or 6) >= digits else Fit.CUT
    return Fit.WHOLE


def told_as(table: TableSchema, source: TableSchema) -> TableSchema:
    """The target's table, whose columns that are wider than the source's write a value as the source does.

    What the source's column could not hold is written as it is.
    """
    told = source.by_name
    columns = tuple(_told_as(column, told[column.name]) if column.name in told else column for column in table.columns)
    return replace(table, columns=columns)


def _told_as(there: Column, told: Column) -> Column:
    text = _text_as(there, told) if there.type != told.type else None
    return there if text is None else replace(there, native={**there.native, "to_text": text})


def _text_as(there: Column, told: Column) -> str | None:
    """SQL for the text of a value as the source's type has it, `{}` for the value; None where it is the same."""
    own, base_type = text_sql(there, "{}"), there.base_type.removesuffix("[]")
    one, other = there.logical, told.logical
    if one.element is None or other.element is None:
        return _text_like(one, other, base_type, own, "pg_catalog.to_char({}, 'HH24:MI:SS.US')")
    # Inside an array canonical text is the server's own.
    text = _text_like(one.element, other.element, base_type, "{}::pg_catalog.text", "{}::pg_catalog.text")
    if text is None:
        return None
    elements = (
        f"SELECT pg_catalog.array_agg({text.replace('{}', 'u.e')} ORDER BY u.n)::pg_catalog.text"
        " FROM pg_catalog.unnest({}) WITH ORDINALITY u (e, n)"
    )
    first, last = "pg_catalog.array_lower({}, 1)", "pg_catalog.array_upper({}, 1)"
    # Bounds are written where the first one is not 1.
    bounds = (
        f"CASE WHEN {first} OPERATOR(pg_catalog.<>) 1 THEN pg_catalog.format('[%s:%s]=', {first}, {last}) ELSE '' END"
    )
    is_flat = "pg_catalog.array_ndims({}) OPERATOR(pg_catalog.=) 1"
    return f"CASE WHEN {is_flat} THEN pg_catalog.concat({bounds}, ({elements})) ELSE {own} END"


def _text_like(there: LogicalType, told: LogicalType, base_type: str, own: str, clock_text: str) -> str | None:
    """The same of a value that is no array.

    Args:
        own: SQL for its text as its own type has it.
        clock_text: SQL for the text of a time of day.
    """
    match there.kind, told.kind:
        case Kind.DECIMAL, Kind.INTEGER | Kind.DECIMAL if base_type == "numeric":
            scale = 0 if told.kind is Kind.INTEGER else told.scale
            if scale is None:
                return None
            rounded = f"pg_catalog.round({{}}, {scale})"
            return f"CASE WHEN {{}} OPERATOR(pg_catalog.=) {rounded} THEN {rounded}::pg_catalog.text ELSE {own} END"
        case Kind.FLOAT, Kind.FLOAT if told.bits == 32:
            size = "pg_catalog.abs({})"
            # Between these a cast to the smaller type is no error.
            is_in_range = (
                f"{size} OPERATOR(pg_catalog.>=) 1.2e-38::pg_catalog.float8"
                f" AND {size} OPERATOR(pg_catalog.<=) 3.4e38::pg_catalog.float8"
            )
            short = "{}::pg_catalog.float4::pg_catalog.text"
            is_same = f"{short}::pg_catalog.float8 OPERATOR(pg_catalog.=) {{}}"
            return f"CASE WHEN {is_in_range} THEN CASE WHEN {is_same} THEN {short} ELSE {own} END ELSE {own} END"
        case Kind.INTERVAL, Kind.TIME:
            # A cast makes 00:00 of the end of a day, which a time of day may be, too.
            clock, end = "{}::pg_catalog.time", "'24:00:00'::pg_catalog.time"
            text = "{}::pg_catalog.text"
            is_same = f"{clock}::pg_catalog.interval::pg_catalog.text OPERATOR(pg_catalog.=) {text}"
            is_end = f"{end}::pg_catalog.interval::pg_catalog.text OPERATOR(pg_catalog.=) {text}"
            return (
                f"CASE WHEN {is_same} THEN {clock_text.replace('{}', clock)}"
                f" WHEN {is_end} THEN {clock_text.replace('{}', end)} ELSE {own} END"
            )
        case _:
            return None
