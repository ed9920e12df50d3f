"""What CREATE messages say of columns, as table definitions: `<colname>` with the words of the source's driver.

A name that SQL or PostgreSQL has for a type counts first, then the number of `java.sql.Types`. A type that is neither
is text to the target, as it is to every other database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock import logical as lt
from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.message import ColumnMetadata
from penstock.logical import Kind, LogicalType, of_sql_name
from penstock.schema import Column, TableSchema, Unique
from penstock.text import printable

_MOST_DIGITS = 1_000
"""What claims more digits has no limit: drivers say so with a large number."""

_MOST_LENGTH = 1 << 24
"""The same for characters."""

_SHORT_NAMES = {
    "int2": lt.integer(16),
    "int4": lt.integer(32),
    "int8": lt.integer(64),
    "smallserial": lt.integer(16),
    "serial": lt.integer(32),
    "bigserial": lt.integer(64),
    "float4": lt.floating(32),
    "float8": lt.floating(64),
    "text": lt.STRING,
    "clob": lt.STRING,
    "nclob": lt.STRING,
    "long": lt.STRING,
    "blob": lt.BINARY,
    "raw": lt.BINARY,
    "long raw": lt.BINARY,
    "binary_float": lt.floating(32),
    "binary_double": lt.floating(64),
}

_LENGTHS = frozenset({"varchar", "varchar2", "nvarchar", "nvarchar2", "character varying"})
_PADDED = frozenset({"char", "character", "nchar", "bpchar"})
_DECIMALS = frozenset({"number", "numeric", "decimal"})

_BY_NUMBER = {
    -7: lt.BOOLEAN,
    16: lt.BOOLEAN,
    -6: lt.integer(16),
    5: lt.integer(16),
    4: lt.integer(32),
    -5: lt.integer(64),
    6: lt.floating(64),
    7: lt.floating(32),
    8: lt.floating(64),
    100: lt.floating(32),
    101: lt.floating(64),
    91: lt.DATE,
    92: LogicalType(Kind.TIME),
    93: LogicalType(Kind.TIMESTAMP),
    2013: LogicalType(Kind.TIMETZ),
    2014: LogicalType(Kind.TIMESTAMPTZ),
    -101: LogicalType(Kind.TIMESTAMPTZ),
    -102: LogicalType(Kind.TIMESTAMPTZ),
    -2: lt.BINARY,
    -3: lt.BINARY,
    -4: lt.BINARY,
    2004: lt.BINARY,
    -1: lt.STRING,
    -16: lt.STRING,
    2005: lt.STRING,
    2011: lt.STRING,
    2009: lt.XML,
}
"""By the number of `java.sql.Types`, and those that Oracle's driver adds; those without a size."""

_NUMBERS_OF_LENGTHS = frozenset({12, -9})
_NUMBERS_OF_PADDED = frozenset({1, -15})
_NUMBERS_OF_DECIMALS = frozenset({2, 3})
_TIMESTAMP = 93


def table_of(name: TableName, columns: Sequence[ColumnMetadata]) -> TableSchema:
    """Return the table that a CREATE message describes, with its primary key.

    Raises:
        MalformedInputError: It describes no column, one twice, or says a size that is no number.
    """
    if not columns:
        raise MalformedInputError(f"the CREATE of table {name} describes no column")
    ordered = sorted(columns, key=lambda column: _number(column, "pos") or 0)
    names = [column.name for column in ordered]
    if len(set(names)) < len(names):
        raise MalformedInputError(f"the CREATE of table {name} describes a column twice")
    key = tuple(column.name for column in ordered if column.attributes.get("pk", "").lower() in ("true", "1", "yes"))
    made = tuple(
        Column.of(
            column.name,
            logical_of(column),
            is_nullable=column.name not in key and column.attributes.get("nullable", "1").strip() != "0",
        )
        for column in ordered
    )
    key_name = next((c.attributes["pkName"] for c in ordered if c.attributes.get("pkName")), f"{name.name}_pkey")
    return TableSchema(name, made, Unique(key_name, key, key) if key else None)


def logical_of(column: ColumnMetadata) -> LogicalType:
    """Return what a column holds.

    Raises:
        MalformedInputError: A size is no number.
    """
    said = column.attributes.get("type", "").strip()
    name = " ".join(said.lower().split())
    number = _number(column, "sqlType")
    if name == "date" and number == _TIMESTAMP:
        # Oracle's DATE has a time.
        return LogicalType(Kind.TIMESTAMP)
    if name.startswith("_") and (element := _named(name[1:], column)) is not None:
        return lt.array(element)
    if (named := _named(name, column)) is not None:
        return named
    if number in _BY_NUMBER:
        return _BY_NUMBER[number]
    if number in _NUMBERS_OF_LENGTHS:
        return lt.string(_length(column))
    if number in _NUMBERS_OF_PADDED:
        return lt.string(_length(column) or 1, is_padded=True)
    if number in _NUMBERS_OF_DECIMALS:
        return _decimal(column)
    return lt.other(said) if said else lt.STRING


def _named(name: str, column: ColumnMetadata) -> LogicalType | None:
    if name in _SHORT_NAMES:
        return _SHORT_NAMES[name]
    if name in _LENGTHS:
        return lt.string(_length(column))
    if name in _PADDED:
        return lt.string(_length(column) or 1, is_padded=True)
    if name in _DECIMALS:
        return _decimal(column)
    if name == "bit" and (_length(column) or 1) > 1:
        return LogicalType(Kind.BITS, length=_length(column))
    if name == "varbit":
        return LogicalType(Kind.BITS)
    return of_sql_name(name) if name else None


def _decimal(column: ColumnMetadata) -> LogicalType:
    precision = _number(column, "precision") or _number(column, "colSize")
    scale = _number(column, "scale") or 0
    # Oracle's driver says -127 of a NUMBER without a scale of its own.
    if precision is None or not 0 < precision <= _MOST_DIGITS or not 0 <= scale <= precision:
        return lt.decimal()
    return lt.decimal(precision, scale)


def _length(column: ColumnMetadata) -> int | None:
    length = _number(column, "charLength") or _number(column, "colSize") or _number(column, "precision")
    return length if length is not None and 0 < length <= _MOST_LENGTH else None


def _number(column: ColumnMetadata, name: str) -> int | None:
    text = column.attributes.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise MalformedInputError(
            f"the {name} of column {printable(column.name[:60])!r} is no whole number", do="repair the CREATE message"
        ) from None


def same_shape(one: TableSchema, other: TableSchema) -> bool:
    """Whether two definitions say the same of a table's columns and its key."""

    def shape(table: TableSchema) -> Mapping[str, object]:
        key = table.primary_key
        return {
            "key": None if key is None else key.columns,
            **{c.name: (c.logical, c.is_nullable) for c in table.columns},
        }

    return shape(one) == shape(other)
