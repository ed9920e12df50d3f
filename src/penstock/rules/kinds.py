"""Types of columns in expressions: canonical text to a value of DuckDB's, and back (see `values`).

What DuckDB has no type for stays the source's own text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.schema import Column

WIDE_DECIMAL = "DECIMAL(38,12)"
"""A decimal whose column has no scale, or one that DuckDB does not have; a value that does not fit is refused."""

_READ_PLAINLY = {
    "boolean": "BOOLEAN",
    "smallint": "SMALLINT",
    "integer": "INTEGER",
    "bigint": "BIGINT",
    "oid": "UINTEGER",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "money": "DECIMAL(19,2)",
    "time without time zone": "TIME",
    "time with time zone": "TIMETZ",
    "uuid": "UUID",
    "json": "JSON",
    "jsonb": "JSON",
}

_READ_WITH_ERA = {
    "date": "DATE",
    "timestamp without time zone": "TIMESTAMP",
    "timestamp with time zone": "TIMESTAMPTZ",
}

# DuckDB writes the era behind the date, in brackets.
_ERA = "CASE WHEN ends_with({}, ' BC') THEN regexp_replace({}, '^([^T ]+)(.*) BC$', '\\1 (BC)\\2') ELSE {} END"

_WIDE = (
    (
        "CASE WHEN regexp_matches({}, '\\.[0-9]{{12}}[0-9]*[1-9]') THEN error('more than 12 decimals')"
        " ELSE CAST({} AS " + WIDE_DECIMAL + ") END"
    )
    .replace("{{", "{")
    .replace("}}", "}")
)


def _part(where: str, unit: str, kind: str, factor: int) -> str:
    """SQL for one number of an ISO 8601 duration, times a factor; 0 if it is not there."""
    found = f"nullif(regexp_extract(split_part({{}}, 'T', {where}), '(-?[0-9.]+){unit}', 1), '')"
    return f"coalesce(CAST({found} AS {kind}), 0) * {factor}"


_DURATION = (
    f"CASE WHEN starts_with({{}}, 'P') THEN to_months(CAST({_part('1', 'Y', 'INTEGER', 12)}"
    f" + {_part('1', 'M', 'INTEGER', 1)} AS INTEGER)) + to_days({_part('1', 'D', 'INTEGER', 1)})"
    f" + to_microseconds(CAST({_part('2', 'H', 'BIGINT', 3_600_000_000)} + {_part('2', 'M', 'BIGINT', 60_000_000)}"
    f" + {_part('2', 'S', 'DECIMAL(18,6)', 1_000_000)} AS BIGINT)) ELSE CAST({{}} AS INTERVAL) END"
)

_DECIMAL = re.compile(r"DECIMAL\(\d+,\d+\)")
_SIZE = re.compile(r"\((\d+),(-?\d+)\)")


@dataclass(frozen=True)
class Input:
    """How a column is read inside an expression.

    Attributes:
        type: DuckDB's type.
        read: SQL template, `{}` for the column of canonical text, that yields the value.
    """

    type: str
    read: str

    @classmethod
    def of(cls, column: Column) -> Input:
        """How this column is read."""
        kind = column.base_type
        if kind in _READ_PLAINLY:
            return cls(_READ_PLAINLY[kind], f"CAST({{}} AS {_READ_PLAINLY[kind]})")
        if kind in _READ_WITH_ERA:
            return cls(_READ_WITH_ERA[kind], f"CAST({_ERA} AS {_READ_WITH_ERA[kind]})")
        if kind == "numeric":
            return _decimal(column)
        if kind == "bytea":
            return cls("BLOB", "from_base64({})")
        if kind == "interval":
            return cls("INTERVAL", _DURATION)
        if kind == "character":
            # Blanks at the end are padding, which the source does not compare either.
            return cls("VARCHAR", "rtrim({}, ' ')")
        return cls("VARCHAR", "{}")


def _decimal(column: Column) -> Input:
    # The column's own type may be a domain, which does not say how long it is.
    size = _SIZE.search(column.staging_type) or _SIZE.search(column.type)
    precision, scale = (int(part) for part in size.groups()) if size else (0, 0)
    if 0 <= scale <= precision <= 38 and precision:
        kind = f"DECIMAL({precision},{scale})"
        return Input(kind, f"CAST({{}} AS {kind})")
    return Input(WIDE_DECIMAL, _WIDE)


@dataclass(frozen=True)
class Output:
    """A column that an expression makes.

    Attributes:
        type: Its type at the target.
        write: SQL template, `{}` for the value, that yields its canonical text; or the value, of a float.
    """

    type: str
    write: str = "CAST({} AS VARCHAR)"

    @classmethod
    def of(cls, kind: str) -> Output | None:
        """The column for values of one of DuckDB's types; None where there is none."""
        if _DECIMAL.fullmatch(kind):
            return cls(kind.replace("DECIMAL", "numeric"))
        return _OUTPUTS.get(kind)

    def column(self, name: str) -> Column:
        """The column, under this name."""
        base = self.type.partition("(")[0]
        is_bytes = base == "bytea"
        return Column(
            name=name,
            type=self.type,
            base_type=base,
            is_comparable=base != "json",
            # Equal decimals without a scale, and equal floats, may be written in several ways.
            is_exact=self.type not in ("numeric", "real", "double precision", "json"),
            is_key_usable=base != "json",
            is_integer=base in ("smallint", "integer", "bigint"),
            is_decimal=base in ("numeric", "real", "double precision"),
            notation="" if base in _COMMON else base,
            from_text="pg_catalog.decode({}, 'base64')" if is_bytes else "{}",
            staging_type="text" if is_bytes else self.type,
            cast_type="text" if is_bytes else base,
        )


_COMMON = ("boolean", "smallint", "integer", "bigint", "numeric", "text", "uuid", "json")
"""Types whose text means the same to a column of any type."""

_TIMESTAMP = (
    "CASE WHEN NOT isfinite({0}) THEN CAST({0} AS VARCHAR) WHEN year({0}) > 0"
    " THEN strftime({0}, '%Y-%m-%dT%H:%M:%S.%f{1}') ELSE lpad(CAST(1 - year({0}) AS VARCHAR), 4, '0')"
    " || strftime({0}, '-%m-%dT%H:%M:%S.%f{1} BC') END"
)

_OUTPUTS = {
    "BOOLEAN": Output("boolean"),
    "TINYINT": Output("smallint"),
    "UTINYINT": Output("smallint"),
    "SMALLINT": Output("smallint"),
    "USMALLINT": Output("integer"),
    "INTEGER": Output("integer"),
    "UINTEGER": Output("bigint"),
    "BIGINT": Output("bigint"),
    "UBIGINT": Output("numeric"),
    "HUGEINT": Output("numeric"),
    "UHUGEINT": Output("numeric"),
    "FLOAT": Output("real", "{}"),
    "DOUBLE": Output("double precision", "{}"),
    "VARCHAR": Output("text"),
    "JSON": Output("json"),
    "UUID": Output("uuid"),
    "BLOB": Output("bytea", "to_base64({})"),
    "DATE": Output("date", "replace(CAST({} AS VARCHAR), ' (BC)', ' BC')"),
    "TIME": Output(
        "time without time zone",
        "CASE WHEN {} = TIME '24:00:00' THEN '24:00:00.000000'"
        " ELSE strftime(DATE '2000-01-01' + {}, '%H:%M:%S.%f') END",
    ),
    "TIMESTAMP": Output("timestamp without time zone", _TIMESTAMP.format("{}", "")),
    "TIMESTAMP WITH TIME ZONE": Output(
        "timestamp with time zone", _TIMESTAMP.format("({} AT TIME ZONE 'UTC')", "+00:00")
    ),
}


def as_text(values: pa.Array) -> pa.Array:
    """Canonical text of what an expression yielded: floats, or text already."""
    if not pa.types.is_floating(values.type):
        return values.cast(pa.string())
    texts = values.cast(pa.string())
    # Arrow has the shortest digits, but other limits for an exponent: write what may be beyond them again.
    most = 1e15 if pa.types.is_float64(values.type) else 1e6
    size = pc.abs(values)
    is_plain = pc.and_(pc.or_(pc.greater_equal(size, 1e-4), pc.equal(size, 0)), pc.less(size, most))
    is_odd = pc.or_(pc.invert(is_plain), pc.match_substring(texts, "e"))
    is_odd = pc.fill_null(is_odd, False)
    if not pc.any(is_odd).as_py():
        return texts
    odd = values.filter(is_odd).to_numpy(zero_copy_only=False)
    return pc.replace_with_mask(texts, is_odd, pa.array([_float_text(value) for value in odd], pa.string()))


def _float_text(value: np.floating) -> str:
    """A float as a database writes it: the shortest digits, with an exponent where it is long otherwise."""
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(str(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text, point = "".join(map(str, digits)), len(digits) + exponent - 1
    minus = "-" if sign else ""
    if -4 <= point < (15 if isinstance(value, np.float64) else 6):
        return minus + format(Decimal((0, digits, exponent)), "f")
    mantissa = text[0] + (f".{text[1:]}" if text[1:] else "")
    return f"{minus}{mantissa}e{'-' if point < 0 else '+'}{abs(point):02}"
