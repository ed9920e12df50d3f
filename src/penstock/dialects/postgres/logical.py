"""PostgreSQL's types and the logical ones: what its columns hold, and how it makes a column of another database."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.dialects.postgres.casts import casts_of
from penstock.logical import COMMON_TEXT, Kind, LogicalType, array, of_sql_name, other
from penstock.schema import Column, TableSchema

DIALECT = "postgres"
"""What columns whose type PostgreSQL has spelled have as their dialect."""


def with_logical(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Add to a definition, as the catalogue query yields it, what each of its columns is to other databases."""
    return {**definition, "columns": [_with_logical(column) for column in definition["columns"]]}


def is_ours(column: Column) -> bool:
    """Whether PostgreSQL has spelled the type of a column.

    Earlier versions did not say it: all they knew of were PostgreSQL's.
    """
    return column.dialect == DIALECT or (column.dialect is None and column.type != str(column.logical))


def in_postgres(table: TableSchema) -> TableSchema:
    """The table as it is made here: columns of no database, or of another one, have types of PostgreSQL's."""
    return replace(table, columns=tuple(column if is_ours(column) else _made(column) for column in table.columns))


def spelling(logical: LogicalType) -> str:
    """How PostgreSQL spells a type; what it has no type for is text."""
    match logical.kind:
        case Kind.INTEGER:
            return "smallint" if logical.bits in (8, 16) else "bigint" if logical.bits == 64 else "integer"
        case Kind.FLOAT:
            return "real" if logical.bits == 32 else "double precision"
        case Kind.DECIMAL:
            return f"numeric{_sizes(logical.precision, 0 if logical.scale is None else logical.scale)}"
        case Kind.STRING if logical.is_padded:
            return f"character{_sizes(logical.length)}" if logical.length else "bpchar"
        case Kind.STRING:
            return f"character varying{_sizes(logical.length)}" if logical.length else "text"
        case Kind.BINARY:
            return "bytea"
        case Kind.TIME | Kind.TIMETZ | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            name, zone = _TIMES[logical.kind]
            # It has microseconds and no more: a type with finer ones is one without a limit.
            is_limited = logical.precision is not None and logical.precision < _MOST_DECIMALS
            return f"{name}{_sizes(logical.precision) if is_limited else ''} {zone} time zone"
        case Kind.BITS:
            return f"bit{_sizes(logical.length)}" if logical.length else "bit varying"
        case Kind.ARRAY:
            assert logical.element is not None
            return f"{spelling(logical.element)}[]"
        case Kind.ENUM | Kind.OTHER:
            return "text"
        case kind:
            return str(kind)


def is_finer(column: Column) -> bool:
    """Whether values of another database's column may have decimals of a second that PostgreSQL rounds."""
    return not is_ours(column) and column.logical.is_finer_than(_MOST_DECIMALS)


_MOST_DECIMALS = 6

_TIMES = {
    Kind.TIME: ("time", "without"),
    Kind.TIMETZ: ("time", "with"),
    Kind.TIMESTAMP: ("timestamp", "without"),
    Kind.TIMESTAMPTZ: ("timestamp", "with"),
}


_UNCUT = {"character": "bpchar", "bit": '"bit"'}
"""What a type of any length is called, where the name without a length means one of length 1."""


def _with_logical(column: Mapping[str, Any]) -> dict[str, Any]:
    base, type_ = str(column["base_type"]), str(column["type"])
    is_domain = "." in type_ and not type_.startswith(base)
    # The type that is staged has the domain's length, but for two that are staged as another type.
    sized = type_ if not is_domain or base in ("bytea", "money") else str(column.get("staging_type", base))
    logical = of_sql_name(base if is_domain and base in ("bytea", "money") else sized) or of_sql_name(base)
    if logical is None:
        element = base.removesuffix("[]")
        logical = other(base) if element == base else array(other(element))
    return {**column, "logical": str(logical), "dialect": DIALECT, "is_domain": is_domain}


def _made(column: Column) -> Column:
    logical = column.logical
    type_ = spelling(logical)
    base = "character" if logical.is_padded else re.sub(r"\(.*?\)", "", type_)
    is_common = logical.kind in COMMON_TEXT and not logical.is_padded
    return replace(
        column,
        type=type_,
        base_type=base,
        dialect=DIALECT,
        notation="" if is_common else "[]" if logical.kind is Kind.ARRAY else base,
        native=casts_of(type_, _UNCUT.get(base, base), is_binary=logical.kind is Kind.BINARY),
    )


def _sizes(first: int | None, second: int | None = None) -> str:
    if first is None:
        return ""
    return f"({first})" if second is None else f"({first},{second})"
