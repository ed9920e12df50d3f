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

from penstock.logical import (
    BINARY,
    BOOLEAN,
    DATE,
    JSON,
    STRING,
    UUID,
    Kind,
    LogicalType,
    decimal,
    floating,
    integer,
)
from penstock.schema import Column

WIDE_DECIMAL = "DECIMAL(38,12)"
"""A decimal whose column has no scale, or one that DuckDB does not have; a value that does not fit is refused."""

_INTEGERS = {8: "TINYINT", 16: "SMALLINT", 24: "INTEGER", 32: "INTEGER", 64: "BIGINT"}

_READ_PLAINLY = {
    Kind.BOOLEAN: "BOOLEAN",
    Kind.TIME: "TIME",
    Kind.TIMETZ: "TIMETZ",
    Kind.UUID: "UUID",
    Kind.JSON: "JSON",
}

_READ_WITH_ERA = {Kind.DATE: "DATE", Kind.TIMESTAMP: "TIMESTAMP", Kind.TIMESTAMPTZ: "TIMESTAMPTZ"}

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

_MOST_DIGITS = 38

_MOST_OF_A_FLOAT = 18

_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


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
        logical = column.logical
        match logical.kind:
            case Kind.INTEGER:
                kind = _INTEGERS[logical.bits or 64]
                return cls(kind, f"CAST({{}} AS {kind})")
            case Kind.FLOAT:
                kind = "FLOAT" if logical.bits == 32 else "DOUBLE"
                return cls(kind, f"CAST({{}} AS {kind})")
            case Kind.DECIMAL:
                return _decimal(logical)
            case Kind.BINARY:
                return cls("BLOB", "from_base64({})")
            case Kind.INTERVAL:
                return cls("INTERVAL", _DURATION)
            case Kind.STRING if logical.is_padded:
                # Blanks at the end are padding, which the source does not compare either.
                return cls("VARCHAR", "rtrim({}, ' ')")
            case kind if kind in _READ_PLAINLY:
                return cls(_READ_PLAINLY[kind], f"CAST({{}} AS {_READ_PLAINLY[kind]})")
            case kind if kind in _READ_WITH_ERA:
                return cls(_READ_WITH_ERA[kind], f"CAST({_ERA} AS {_READ_WITH_ERA[kind]})")
            case _:
                return cls("VARCHAR", "{}")


def _decimal(logical: LogicalType) -> Input:
    precision, scale = logical.precision or 0, logical.scale or 0
    if 0 <= scale <= precision <= _MOST_DIGITS and precision:
        kind = f"DECIMAL({precision},{scale})"
        if scale == precision < _MOST_DIGITS:
            # One digit more before the point, so that an expression which makes text of it writes 0.5 and not .5.
            return Input(kind, f"CAST(CAST({{}} AS {kind}) AS DECIMAL({precision + 1},{scale}))")
        return Input(kind, f"CAST({{}} AS {kind})")
    return Input(WIDE_DECIMAL, _WIDE)


@dataclass(frozen=True)
class Output:
    """A column that an expression makes.

    Attributes:
        type: What it holds.
        write: SQL template, `{}` for the value, that yields its canonical text; or the value, of a float.
    """

    type: LogicalType
    write: str = "CAST({} AS VARCHAR)"

    @classmethod
    def of(cls, kind: str) -> Output | None:
        """The column for values of one of DuckDB's types; None where there is none."""
        if size := _DECIMAL.fullmatch(kind):
            precision, scale = map(int, size.groups())
            text = f"CAST(CAST({{}} AS {kind}) AS VARCHAR)"
            return cls(decimal(precision, scale), _WITH_ZERO.replace("{}", text) if precision == scale else text)
        return _OUTPUTS.get(kind)

    def column(self, name: str) -> Column:
        """The column, under this name."""
        return Column.of(name, self.type)


_WITH_ZERO = (
    "CASE WHEN starts_with({}, '.') THEN '0' || {} WHEN starts_with({}, '-.') THEN '-0' || substring({}, 2) ELSE {} END"
)
"""DuckDB writes nothing before the point where a decimal has no digit there."""


_DATE = (
    "CASE WHEN isfinite({}) AND NOT {} BETWEEN DATE '4714-11-24 (BC)' AND DATE '5874897-12-31'"
    " THEN error('out of range') ELSE replace(CAST({} AS VARCHAR), ' (BC)', ' BC') END"
)
"""A database's calendar begins with the Julian period, and ends before DuckDB's."""

_TIMESTAMP = (
    "CASE WHEN NOT isfinite({0}) THEN CAST({0} AS VARCHAR)"
    " WHEN {0} < TIMESTAMP '4714-11-24 (BC) 00:00:00' THEN error('out of range') WHEN year({0}) > 0"
    " THEN strftime({0}, '%Y-%m-%dT%H:%M:%S.%f{1}') ELSE lpad(CAST(1 - year({0}) AS VARCHAR), 4, '0')"
    " || strftime({0}, '-%m-%dT%H:%M:%S.%f{1} BC') END"
)

_OUTPUTS = {
    "BOOLEAN": Output(BOOLEAN),
    "TINYINT": Output(integer(16)),
    "UTINYINT": Output(integer(16)),
    "SMALLINT": Output(integer(16)),
    "USMALLINT": Output(integer(32)),
    "INTEGER": Output(integer(32)),
    "UINTEGER": Output(integer(64)),
    "BIGINT": Output(integer(64)),
    "UBIGINT": Output(decimal()),
    "HUGEINT": Output(decimal()),
    "UHUGEINT": Output(decimal()),
    "FLOAT": Output(floating(32), "{}"),
    "DOUBLE": Output(floating(64), "{}"),
    "VARCHAR": Output(STRING),
    "JSON": Output(JSON),
    "UUID": Output(UUID),
    "BLOB": Output(BINARY, "to_base64({})"),
    "DATE": Output(DATE, _DATE),
    "TIME": Output(
        LogicalType(Kind.TIME),
        "CASE WHEN {} = TIME '24:00:00' THEN '24:00:00.000000'"
        " ELSE strftime(DATE '2000-01-01' + {}, '%H:%M:%S.%f') END",
    ),
    "TIMESTAMP": Output(LogicalType(Kind.TIMESTAMP), _TIMESTAMP.format("{}", "")),
    "TIMESTAMP WITH TIME ZONE": Output(
        LogicalType(Kind.TIMESTAMPTZ), _TIMESTAMP.format("({} AT TIME ZONE 'UTC')", "+00:00")
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
    sign, digits, exponent = _shortest(value).normalize().as_tuple()
    assert isinstance(exponent, int)
    text, point = "".join(map(str, digits)), len(digits) + exponent - 1
    minus = "-" if sign else ""
    if -4 <= point < (15 if isinstance(value, np.float64) else 6):
        return minus + format(Decimal((0, digits, exponent)), "f")
    mantissa = text[0] + (f".{text[1:]}" if text[1:] else "")
    return f"{minus}{mantissa}e{'-' if point < 0 else '+'}{abs(point):02}"


def _shortest(value: np.floating) -> Decimal:
    """The fewest digits that mean a float and no other, as PostgreSQL finds them.

    Others take digits that lie in the middle between two floats, where reading them ends at the even one. PostgreSQL
    takes more digits then.
    """
    found = Decimal(str(value))
    exact = Decimal(float(value))
    type_ = type(value)
    with np.errstate(over="ignore"):
        beside = [Decimal(float(np.nextafter(value, type_(end)))) for end in (-np.inf, np.inf)]
    if all(one.is_finite() for one in beside):
        for digits in range(len(found.as_tuple().digits), _MOST_OF_A_FLOAT):
            if all(2 * found != exact + one for one in beside):
                break
            found = Decimal(f"{float(value):.{digits}e}")
    return found
