"""A table's definition in a message: the `<colname>` elements of a CREATE, from a `TableSchema` and back.

The attributes are those of JDBC: `type` is what the database calls the type, without its length; `sqlType` is the
number that `java.sql.Types` has for it; `precision` and `scale` are of numbers, `colSize` and `charLength` of texts.
Zeros, empty texts and defaults are left out, except `nullable`. They say less than a definition: no order of the key's
columns, no foreign keys, no labels of an enum.

An ALTER of Penstock's has three attributes more, which other readers ignore: `was`, what the column was called before,
empty for a new one; `filled`, the text that rows have in a new one which were there before it; `unclear`, why it cannot
be told what rows have in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from penstock.change import Image, TableName
from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.message import ColumnMetadata
from penstock.formats.dbwatcher.protect import NOT_XML
from penstock.logical import BINARY, Kind, LogicalType, decimal, floating, integer, of_sql_name, other, string
from penstock.schema import Column, TableSchema, Unique
from penstock.text import printable

_OTHER, _ARRAY, _VARCHAR = 1111, 2003, 12

_TYPES: Mapping[Kind, tuple[str, int]] = {
    Kind.BOOLEAN: ("bool", -7),
    Kind.DECIMAL: ("numeric", 2),
    Kind.BINARY: ("bytea", -2),
    Kind.DATE: ("date", 91),
    Kind.TIME: ("time", 92),
    Kind.TIMETZ: ("timetz", 92),
    Kind.TIMESTAMP: ("timestamp", 93),
    Kind.TIMESTAMPTZ: ("timestamptz", 93),
    Kind.INTERVAL: ("interval", _OTHER),
    Kind.JSON: ("json", _OTHER),
    Kind.UUID: ("uuid", _OTHER),
    Kind.XML: ("xml", 2009),
    Kind.ENUM: ("text", _VARCHAR),
}
_INTEGERS = {8: ("int2", 5), 16: ("int2", 5), 24: ("int4", 4), 32: ("int4", 4), 64: ("int8", -5)}
_FLOATS = {32: ("float4", 7), 64: ("float8", 8)}

_READ: Mapping[str, LogicalType] = {
    "bool": LogicalType(Kind.BOOLEAN),
    "int2": integer(16),
    "int4": integer(32),
    "int8": integer(64),
    "serial": integer(32),
    "bigserial": integer(64),
    "float4": floating(32),
    "float8": floating(64),
    "bytea": BINARY,
    # Oracle's own.
    "binary_float": floating(32),
    "binary_double": floating(64),
    "blob": BINARY,
    "raw": BINARY,
    "long raw": BINARY,
    "clob": string(),
    "nclob": string(),
    "long": string(),
}
_TEXTS = {"varchar": False, "varchar2": False, "nvarchar2": False, "bpchar": True, "char": True, "nchar": True}

_TIMESTAMP = 93
_READ_BY_NUMBER: Mapping[int, LogicalType] = {
    -7: LogicalType(Kind.BOOLEAN),
    16: LogicalType(Kind.BOOLEAN),
    -6: integer(16),
    5: integer(16),
    4: integer(32),
    -5: integer(64),
    6: floating(64),
    7: floating(32),
    8: floating(64),
    -2: BINARY,
    -3: BINARY,
    -4: BINARY,
    2004: BINARY,
    -1: string(),
    2005: string(),
    91: LogicalType(Kind.DATE),
    92: LogicalType(Kind.TIME),
    _TIMESTAMP: LogicalType(Kind.TIMESTAMP),
    # Oracle's own, with a time zone and with that of the session.
    -101: LogicalType(Kind.TIMESTAMPTZ),
    -102: LogicalType(Kind.TIMESTAMPTZ),
}
"""By the number of `java.sql.Types`, where the name is another database's."""

_MOST_DIGITS, _MOST_CHARACTERS = 1_000, 10_485_760
"""What claims more has no limit: drivers say so with a large number."""

_NO_SCALE = -127
"""What Oracle says where there is no scale. Another one below zero is the type's own, as that of `numeric(5,-2)`."""

_WRAPPED = 1 << 11


def metadata_of(table: TableSchema) -> Sequence[ColumnMetadata]:
    """Return what a message says of a table's columns, in their order."""
    key = table.primary_key
    found = []
    for position, column in enumerate(table.columns, 1):
        said = {"table": table.name.name, "schema": table.name.schema, **_type(column.logical)}
        said |= {"nullable": "1" if column.is_nullable else "0", "pos": str(position)}
        if key is not None and column.name in key.columns:
            said |= {"pk": "true", "pkName": key.name}
        found.append(ColumnMetadata(column.name, said))
    return found


WAS, FILLED, UNCLEAR = "was", "filled", "unclear"


def altered_metadata_of(table: TableSchema, told: Image) -> Sequence[ColumnMetadata]:
    """Return what an ALTER says of a table's columns; nothing where it is not known what has become of each.

    Args:
        told: The change of DDL: the table before (`was`) and behind it (`is`), with the numbers that columns keep;
            why it cannot be told of a column what rows have in it (`unclear`), or of the whole table (`unlike`).
    """
    shapes = [json.loads(told.get(part) or "null") for part in ("was", "is")]
    if any("columns" not in (shape or {}) for shape in shapes) or told.get("unlike") is not None:
        return ()
    old, new = (shape["columns"] for shape in shapes)
    numbers = {column["name"]: number for number, column in new.items()}
    unclear: Mapping[str, str] = json.loads(told.get("unclear") or "{}")
    found = []
    for column in metadata_of(table):
        number = numbers.get(column.name)
        # What rules have added is there in every version.
        before = column.name if number is None else old[number]["name"] if number in old else ""
        said = {**column.attributes, WAS: before}
        why = unclear.get(column.name)
        filled = None if before or number is None else new[number].get("filled")
        if filled is not None and NOT_XML.search(filled) is not None:
            filled, why = None, "is filled with a text that XML cannot carry"
        said |= {} if filled is None else {FILLED: filled}
        found.append(ColumnMetadata(column.name, said if why is None else {**said, UNCLEAR: why}))
    return found


def table_of(name: TableName, metadata: Sequence[ColumnMetadata]) -> TableSchema:
    """Return the definition of a table that a CREATE describes; its key's columns are in the order of the table.

    Types whose name is not known hold the source's own text.

    Raises:
        MalformedInputError: There are no columns, one is there twice, or an attribute that is a number has none.
    """
    columns = [_column(one) for one in sorted(metadata, key=lambda one: _number(one, "pos") or 0)]
    names = [column.name for column in columns]
    if not names or len(set(names)) < len(names):
        raise MalformedInputError("a CREATE has no columns, or one twice", where=f"table {name}")
    keyed = [one for one in metadata if one.attributes.get("pk", "false").lower() not in ("", "false", "0")]
    key = tuple(column for column in names if column in {one.name for one in keyed})
    called = keyed[0].attributes.get("pkName", "") if keyed else ""
    return TableSchema(name, tuple(columns), Unique(called or f"{name.name}_pkey", key, key) if key else None)


def _type(logical: LogicalType) -> Mapping[str, str]:
    """Return `type`, `sqlType` and sizes."""
    match logical.kind:
        case Kind.INTEGER:
            type_, number = _INTEGERS.get(logical.bits or 64, _INTEGERS[64])
        case Kind.FLOAT:
            type_, number = _FLOATS.get(logical.bits or 64, _FLOATS[64])
        case Kind.STRING if logical.is_padded:
            type_, number = "bpchar", 1
        case Kind.STRING:
            type_, number = ("text" if logical.length is None else "varchar"), _VARCHAR
        case Kind.BITS:
            type_, number = ("varbit", _OTHER) if logical.length is None else ("bit", -7)
        case Kind.ARRAY if logical.element is not None:
            element = _type(logical.element)
            return {**element, "type": f"_{element['type']}", "sqlType": str(_ARRAY)}
        case Kind.OTHER:
            type_, number = logical.name, _OTHER
        case kind:
            type_, number = _TYPES.get(kind, (str(kind), _OTHER))
    sizes = {"precision": logical.precision, "scale": logical.scale, "colSize": logical.length}
    if logical.kind is not Kind.DECIMAL:
        # Of times, the decimals of a second.
        sizes = {**sizes, "precision": None, "scale": logical.precision}
    if logical.kind is Kind.STRING:
        sizes["charLength"] = logical.length
    return {"type": type_, "sqlType": str(number), **{name: str(size) for name, size in sizes.items() if size}}


def _column(metadata: ColumnMetadata) -> Column:
    return Column.of(metadata.name, _logical(metadata), is_nullable=metadata.attributes.get("nullable") != "0")


def _logical(metadata: ColumnMetadata) -> LogicalType:
    said = (metadata.attributes.get("type") or metadata.attributes.get("typeName") or "").strip()
    type_ = said.lower()
    if type_.startswith("_"):
        element = _logical(ColumnMetadata(metadata.name, {**metadata.attributes, "type": type_[1:]}))
        return LogicalType(Kind.ARRAY, element=element)
    precision, scale = _number(metadata, "precision"), _number(metadata, "scale")
    size = _number(metadata, "charLength") or _number(metadata, "colSize")
    number = _number(metadata, "sqlType")
    if type_ in ("numeric", "decimal", "number"):
        if type_ == "numeric" and scale is not None and _WRAPPED // 2 <= scale < _WRAPPED:
            # PostgreSQL's driver hands on the 11 bits in which the server keeps a scale below zero.
            scale -= _WRAPPED
        is_sized = 0 < (precision or 0) <= _MOST_DIGITS and scale != _NO_SCALE
        return decimal(precision, scale or 0) if is_sized else decimal()
    if type_ in _TEXTS:
        return string(size if size and size <= _MOST_CHARACTERS else None, is_padded=_TEXTS[type_])
    if type_ == "date" and number == _TIMESTAMP:
        # Oracle's DATE has a time of the day.
        return LogicalType(Kind.TIMESTAMP)
    if type_ == "bit":
        return LogicalType(Kind.BITS, length=size or 1)
    if type_ == "varbit":
        return LogicalType(Kind.BITS)
    found = _READ.get(type_) or of_sql_name(type_)
    if found is None:
        return _READ_BY_NUMBER.get(number or 0) or other(said)
    is_time = found.kind in (Kind.TIME, Kind.TIMETZ, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
    return LogicalType(found.kind, precision=scale) if is_time and found.precision is None else found


def _number(metadata: ColumnMetadata, name: str) -> int | None:
    text = metadata.attributes.get(name, "").strip()
    if not text:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 10):
        raise MalformedInputError(f"{name} of column {printable(metadata.name[:60])!r} is not a whole number")
    return int(text)
