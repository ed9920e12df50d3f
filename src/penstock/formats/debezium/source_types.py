"""What the source's column is, for events that have no schema: told, and read as the schema would have been.

What a type is called in a PostgreSQL target, `dialects.postgres.logical` says.

The same number stands for another time by the precision of the source's column and the options of its connector, and
the same base64 for another decimal by its scale. So a type is told as the source has it, `DATETIME(3)`, `NUMBER(10,2)`,
or as the schema would call it, `io.debezium.time.MicroTimestamp`; what the target has there is never asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from penstock.errors import MalformedInputError
from penstock.formats.debezium.declared import MYSQL_FAMILY, DeclaredModes, declared_reader
from penstock.formats.debezium.numbers import integer_reader
from penstock.formats.debezium.schema import ConnectSchema
from penstock.formats.debezium.types import LOGICAL_TYPES, decimal_parameters, is_unsigned, logical_of, reader_of
from penstock.formats.debezium.value_reader import Reader
from penstock.logical import (
    BINARY,
    INTERVAL,
    JSON,
    STRING,
    UUID,
    XML,
    Kind,
    LogicalType,
    array,
    decimal,
    floating,
    other,
)
from penstock.logical import integer as whole

COLUMNS_HEADER = "__penstock.columns"
"""The header by which our own events without schemas say what a schema would: see `columns_header`."""


class SourceColumn(NamedTuple):
    """What the source's column is.

    Attributes:
        logical: What a table needs to hold its values.
        read: Its reader, see `canonical`.
        is_exact: Told as the schema would: nothing of it rests on an option of the connector.
        is_unsigned: A number of 64 bits without a sign.
    """

    logical: LogicalType
    read: Reader
    is_exact: bool = False
    is_unsigned: bool = False


@lru_cache(4096)
def told_of(text: str, connector: str, modes: DeclaredModes) -> SourceColumn:
    """Read a type as the pipeline file tells it.

    Args:
        text: The type as the source spells it, or a logical type's text form, or the name of a schema.
        connector: Whose types they are, as the source block of an event names it; empty where that is not known.

    Raises:
        ValueError: It is none of them.
    """
    if text.startswith(("io.debezium.", "org.apache.kafka.")):
        return told_by(_named_schema(text), modes, connector)
    logical, has_no_sign = _logical(" ".join(text.split()), connector)
    if has_no_sign:
        # bigint.unsigned.handling.mode=precise has decimals, of which the base64 says nothing of a scale but 0.
        signed = integer_reader(64, is_unsigned=True)
        precise = declared_reader(logical, modes, connector)
        return SourceColumn(
            logical, lambda value: signed(value) if type(value) is int else precise(value), is_unsigned=True
        )
    return SourceColumn(logical, declared_reader(logical, modes, connector))


def check_type(text: str, modes: DeclaredModes) -> None:
    """Make sure that a type is one of some connector's database, as long as no event says whose it is.

    Raises:
        ValueError: It is none.
    """
    refused = None
    for connector in ("", *_OF_CONNECTOR):
        try:
            told_of(text, connector, modes)
        except ValueError as exc:
            refused = refused or exc
        else:
            return
    assert refused is not None
    raise refused


def told_by(schema: ConnectSchema, modes: DeclaredModes, connector: str) -> SourceColumn:
    """Take a type from the schema that a column has elsewhere; raises `ValueError` where it lacks a parameter."""
    return SourceColumn(logical_of(schema, connector), reader_of(schema, None, modes), True, is_unsigned(schema))


def columns_header(fields: Mapping[str, ConnectSchema]) -> bytes:
    """Write what a row's schema says of the columns whose values do not tell how they are read; empty if all do."""
    named = {name: text for name, schema in fields.items() if (text := _short(schema)) is not None}
    return json.dumps(named, ensure_ascii=False, separators=(",", ":")).encode() if named else b""


@lru_cache(4096)
def read_columns_header(data: bytes) -> Mapping[str, ConnectSchema]:
    """Read what `columns_header` has written; raises `ValueError` where it is something else."""
    named: dict[str, str] = json.loads(data)
    try:
        return {name: _named_schema(text) for name, text in named.items()}
    except (AttributeError, TypeError):
        raise ValueError("is not an object of texts") from None


_SHORT = re.compile(r"([A-Za-z.]+)(?:\((?:(\d+),)?(-?\d+)\))?", re.ASCII)
"""A name, and the scale or the length; before a scale perhaps the precision."""

_PARAMETER = {"Decimal": "scale", "Bits": "length"}
_BYTES = "bytes"


def _short(schema: ConnectSchema) -> str | None:
    """Name a schema as briefly as `_named_schema` understands; None where its values are what they look like."""
    if schema.type == "array" and schema.items is not None and schema.name is None:
        of = _short(schema.items)
        return of and f"array({of})"
    if schema.name is None:
        return _BYTES if schema.type == "bytes" else None
    name = schema.name.rpartition(".")[2]
    if schema.type in ("struct", "string") and not name.startswith(("Zoned", "Iso", "Interval")):
        return None
    if name == "Decimal":
        logical = logical_of(schema)
        sizes = (logical.precision, schema.parameters["scale"] if logical.scale is None else logical.scale)
        return f"Decimal({','.join(str(size) for size in sizes if size is not None)})"
    length = schema.parameters.get(_PARAMETER.get(name, ""))
    return name if length is None else f"{name}({length})"


def _named_schema(text: str) -> ConnectSchema:
    if text.startswith("array(") and text.endswith(")"):
        return ConnectSchema("array", items=_named_schema(text.removeprefix("array(").removesuffix(")")))
    if text == _BYTES:
        return ConnectSchema("bytes")
    found = _SHORT.fullmatch(text)
    full = found and (found[1] if found[1] in LOGICAL_TYPES else _FULL_NAMES.get(found[1]))
    if not found or not full:
        raise ValueError(f"is {text!r}, which is no schema that Debezium has")
    parameter, precision, size = _PARAMETER.get(full.rpartition(".")[2]), found[2], found[3]
    if (parameter == "scale") != (size is not None) and parameter != "length":
        raise ValueError(f"is {text!r}, where {full} takes {'its scale' if parameter else 'no number'}")
    parameters = {} if parameter is None or size is None else {parameter: size}
    if precision is not None and size is not None:
        parameters = decimal_parameters(int(precision), int(size))
    return ConnectSchema(LOGICAL_TYPES[full], name=full, version=1, parameters=MappingProxyType(parameters))


_FULL_NAMES = {name.rpartition(".")[2]: name for name in sorted(LOGICAL_TYPES, reverse=True)}
"""Schemas by the last part of their names; where Connect has one of the same name, Debezium's."""

_TYPE = re.compile(
    r"(?P<name>[a-z][a-z0-9_ ]*?)\s*(?:\((?P<sizes>[^()]*)\))?\s*(?P<more>(?:unsigned|zerofill|signed|for bit data"
    r"|with (?:local )?time zone|without time zone|\s)*)",
    re.ASCII,
)


_IN_BYTES = re.compile(r"(?<=\()(\d+) (?:byte|char)(?=\))", re.IGNORECASE | re.ASCII)
_NO_SIZE = re.compile(r"\(max\)", re.IGNORECASE | re.ASCII)


def _logical(text: str, connector: str) -> tuple[LogicalType, bool]:
    """Return what a column of a type holds, and whether it is a number of 64 bits without a sign."""
    if text.endswith("[]"):
        element, _ = _logical(text.removesuffix("[]").rstrip(), connector)
        return array(element), False
    text = _NO_SIZE.sub("", _IN_BYTES.sub(r"\1", text))
    found = _TYPE.fullmatch(text.lower())
    if text.lower().startswith("interval "):
        return INTERVAL, False
    if found is not None:
        name = found["name"]
        more = " ".join(word for word in found["more"].split() if word not in ("zerofill", "signed"))
        sizes = [int(size) for size in re.findall(r"-?\d+", found["sizes"] or "")]
        if (name == "bigint" and "unsigned" in more) or (name == "serial" and connector in MYSQL_FAMILY):
            return decimal(20, 0), True
        own = _OF_CONNECTOR.get(_FAMILIES.get(connector, connector), {})
        if not connector and not sizes and name in _NOT_ALIKE:
            raise ValueError(
                f"is {text!r}, another type in each database, and the event does not say its connector;"
                f" write {_NOT_ALIKE[name]}"
            )
        for known in (f"{name} {more}".rstrip(), name):
            if (make := own.get(known) or _OF_ANY.get(known)) is not None:
                return make(sizes), False
    for spelled in (text, text.lower()):
        try:
            return LogicalType.parse(spelled), False
        except MalformedInputError:
            continue
    if text.lower() in _ONLY_POSTGRESQL:
        return other(text.lower()), False
    raise ValueError(
        f"is {text!r}, which is no type; write it as the source has it, such as 'decimal(10,2)', 'datetime(3)',"
        " of a domain the type that it is of, and 'text' of an enum or another type of your own"
    )


_NOT_ALIKE = {"money": "decimal(19,2) or decimal(19,4)", "bit": "boolean or bits(1)"}
"""Names that are another type in each database, and what to write where an event does not say whose it is."""


_ONLY_POSTGRESQL = frozenset(
    (
        *("inet", "cidr", "macaddr", "macaddr8", "name", "ltree", "hstore", "tsvector", "tsquery"),
        *("point", "geometry", "geography", "vector"),
        *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
    )
)
"""Types whose values come as the text that PostgreSQL has for them, or as a structure that says itself what it is."""

_Make = Callable[[list[int]], LogicalType]


def _is(logical: LogicalType) -> _Make:
    return lambda sizes: logical


def _temporal(kind: Kind, digits: int) -> _Make:
    """A time of so many decimals of a second, where the type is not written with another number of them."""
    return lambda sizes: LogicalType(kind, precision=sizes[0] if sizes else digits)


def _decimal(precision: int | None, scale: int | None = None) -> _Make:
    """A decimal, of this precision and scale where the type is written without them."""

    def make(sizes: list[int]) -> LogicalType:
        if not sizes:
            return decimal(precision, scale)
        return decimal(sizes[0], sizes[1] if len(sizes) > 1 else 0)

    return make


def _float(sizes: list[int]) -> LogicalType:
    return floating(32 if sizes and len(sizes) == 1 and sizes[0] <= 24 else 64)


def _of_bits(sizes: list[int]) -> LogicalType:
    return LogicalType(Kind.BITS, length=sizes[0] if sizes else 1)


_FAMILIES = dict.fromkeys(MYSQL_FAMILY, "mysql")

_OF_ANY: Mapping[str, _Make] = {
    **dict.fromkeys(("clob", "nclob", "dbclob", "tinytext", "mediumtext", "longtext", "ntext"), _is(STRING)),
    **dict.fromkeys(("nchar", "nvarchar", "varchar2", "nvarchar2", "graphic", "vargraphic", "rowid"), _is(STRING)),
    **dict.fromkeys(("citext", "set"), _is(STRING)),
    **dict.fromkeys(("blob", "tinyblob", "mediumblob", "longblob", "varbinary", "image", "raw"), _is(BINARY)),
    **dict.fromkeys(("char for bit data", "varchar for bit data"), _is(BINARY)),
    "tinyint": _is(whole(16)),
    "mediumint": _is(whole(32)),
    "smallint unsigned": _is(whole(32)),
    "int unsigned": _is(whole(64)),
    "integer unsigned": _is(whole(64)),
    "year": _is(whole(32)),
    "number": _decimal(None),
    "decfloat": _is(decimal()),
    "datetime": _temporal(Kind.TIMESTAMP, 3),
    "datetime2": _temporal(Kind.TIMESTAMP, 7),
    "smalldatetime": _temporal(Kind.TIMESTAMP, 0),
    "datetimeoffset": _temporal(Kind.TIMESTAMPTZ, 7),
    "timestamp with local time zone": _temporal(Kind.TIMESTAMPTZ, 6),
    "uniqueidentifier": _is(UUID),
    "interval": _is(INTERVAL),
    "xmltype": _is(XML),
    "rowversion": _is(BINARY),
    "binary_float": _is(floating(32)),
    "binary_double": _is(floating(64)),
}
"""Types by names that mean one thing wherever they are known, and that the logical types do not have."""

_OF_CONNECTOR: Mapping[str, Mapping[str, _Make]] = {
    "mysql": {
        "datetime": _temporal(Kind.TIMESTAMP, 0),
        "time": _temporal(Kind.TIME, 0),
        # It is kept in UTC there, and comes with its zone.
        "timestamp": _temporal(Kind.TIMESTAMPTZ, 0),
        "decimal": _decimal(10, 0),
        "numeric": _decimal(10, 0),
        "float": _float,
        "bit": _of_bits,
        "binary": _is(BINARY),
        "json": _is(JSON),
        # With numbers that say how wide a client shows them.
        "int": _is(whole(32)),
        "integer": _is(whole(32)),
        "smallint": _is(whole(16)),
        "bigint": _is(whole(64)),
        "double": _is(floating(64)),
        "double precision": _is(floating(64)),
        "real": _is(floating(64)),
        "geometry": _is(other("geometry")),
    },
    "oracle": {
        # It has a time of day there.
        "date": _temporal(Kind.TIMESTAMP, 0),
        "timestamp": _temporal(Kind.TIMESTAMP, 6),
        "timestamp with time zone": _temporal(Kind.TIMESTAMPTZ, 6),
        "integer": _is(decimal(38, 0)),
        "int": _is(decimal(38, 0)),
        "smallint": _is(decimal(38, 0)),
        "float": _is(decimal()),
        "real": _is(decimal()),
        "double precision": _is(decimal()),
    },
    "sqlserver": {
        "bit": _is(LogicalType(Kind.BOOLEAN)),
        "time": _temporal(Kind.TIME, 7),
        "timestamp": _is(BINARY),
        "binary": _is(BINARY),
        "decimal": _decimal(18, 0),
        "numeric": _decimal(18, 0),
        "money": _is(decimal(19, 4)),
        "smallmoney": _is(decimal(10, 4)),
        "float": _float,
        "datetime": _temporal(Kind.TIMESTAMP, 3),
    },
    "db2": {
        "timestamp": _temporal(Kind.TIMESTAMP, 6),
        "time": _temporal(Kind.TIME, 0),
        "decimal": _decimal(5, 0),
        "numeric": _decimal(5, 0),
        "float": _float,
        "binary": _is(BINARY),
    },
    "cassandra": {
        "timestamp": _temporal(Kind.TIMESTAMP, 3),
        "time": _temporal(Kind.TIME, 9),
        "varint": _is(decimal()),
        "duration": _is(INTERVAL),
    },
    "postgresql": {
        "time": _temporal(Kind.TIME, 6),
        "timestamp": _temporal(Kind.TIMESTAMP, 6),
        "bit": _of_bits,
        # Of none that this connector could write the length of; it pads nothing either.
        "bit varying": _is(LogicalType(Kind.BITS)),
        "varbit": _is(LogicalType(Kind.BITS)),
        "timestamp with time zone": lambda sizes: LogicalType(Kind.TIMESTAMPTZ, precision=sizes[0] if sizes else None),
        "time with time zone": lambda sizes: LogicalType(Kind.TIMETZ, precision=sizes[0] if sizes else None),
        "money": _is(decimal(19, 2)),
    },
}
"""What names mean to one connector's database alone, or what a length is there that is not written."""
