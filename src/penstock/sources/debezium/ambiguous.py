"""Where events without schemas may be misread: looked at before anything is, with some of their values.

Nothing here says anything of a value but which readings it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.formats.debezium.declared import (
    MYSQL_FAMILY,
    DeclaredModes,
    UnknownTypeError,
    looks_like_hex,
    looks_like_numbers,
    must_be_told,
    plain_reader,
    unit_of,
)
from penstock.formats.debezium.numbers import bytes_of
from penstock.formats.debezium.source_types import SourceColumn
from penstock.logical import Kind, LogicalType

_DAY_S = 86_400
_LIKELY_S = 20 * 365 * _DAY_S, 130 * 365 * _DAY_S
"""Times that most rows have: from 1990 to 2100."""

_NEAR_1970_S = 365 * _DAY_S
_YEAR_9999_S = 253_402_300_800
_UNITS = {3: "milliseconds", 6: "microseconds", 9: "nanoseconds"}
_NO_DATE = "is not a value that the source can have there"


class PlainRow(NamedTuple):
    """A row without a schema.

    Attributes:
        values: Those that are not null, as the parser left them.
        told: What is told of its columns.
    """

    connector: str
    values: Mapping[str, Any]
    told: Mapping[str, SourceColumn]


class AmbiguousColumn(NamedTuple):
    """A column that may be misread.

    Attributes:
        why: What speaks against what is told of it; empty where nothing is told.
        write: What to write of it in the pipeline file, or how to set it right.
    """

    column: str
    why: str
    write: str


def doubts(
    rows: Sequence[PlainRow], expected: Mapping[str, LogicalType], modes: DeclaredModes
) -> Sequence[AmbiguousColumn]:
    """Say which columns of a table may be misread.

    Args:
        rows: Some of the table's, at least one.
        expected: The columns that the target has.
    """
    found = []
    told = rows[-1].told
    for name in {**dict.fromkeys(expected), **dict.fromkeys(told)}:
        values = [row.values[name] for row in rows if name in row.values]
        there = rows[-1].connector
        if name in told:
            doubt = _told_wrong(name, told[name], values, modes, there)
        else:
            doubt = _untold(name, expected[name], values, modes, there)
        if doubt is not None:
            found.append(doubt)
    return found


def _untold(
    name: str, expected: LogicalType, values: Sequence[Any], modes: DeclaredModes, connector: str
) -> AmbiguousColumn | None:
    write = _suggestion(expected, values, connector)
    if not values:
        return AmbiguousColumn(name, "", write) if must_be_told(expected, modes) else None
    if not _all_read(plain_reader(expected, modes, connector), values):
        return AmbiguousColumn(name, "", write)
    if expected.kind is Kind.STRING and _looks_like_base64(values):
        return AmbiguousColumn(name, "", "string', if it is text, or 'binary', or 'decimal(PRECISION,SCALE)")
    return None


def _told_wrong(
    name: str, told: SourceColumn, values: Sequence[Any], modes: DeclaredModes, connector: str
) -> AmbiguousColumn | None:
    logical = told.logical
    if told.is_exact or not values:
        return None
    is_precise = modes.decimal == "precise" and "decimals" not in modes.written
    if logical.kind is Kind.DECIMAL and is_precise and looks_like_numbers(values):
        why = "its values look like plain digits, not like base64"
        return AmbiguousColumn(
            name, why, "set capture.debezium.decimals: string, or precise if they are base64 all the same"
        )
    is_base64 = modes.binary in ("bytes", "base64") and "binary" not in modes.written
    if logical.kind is Kind.BINARY and is_base64 and looks_like_hex(values):
        why = "its values look like hexadecimal digits, not like base64"
        return AmbiguousColumn(name, why, "set capture.debezium.binary: hex, or bytes if they are base64 all the same")
    try:
        for value in values:
            told.read(value)
    except (ValueError, ArithmeticError) as exc:
        why = str(exc) if str(exc).startswith(("is ", "has ", "reads ", "does ")) else "cannot be read so"
        return AmbiguousColumn(name, f"one of its values {why}", "write what the source's column is")
    if logical.kind is Kind.DECIMAL and logical.precision is not None and modes.decimal == "precise":
        texts = [told.read(value).lstrip("-") for value in values]
        if any(len(text.replace(".", "").lstrip("0")) > logical.precision for text in texts):
            return AmbiguousColumn(
                name, "one of its values has more digits", "write the precision and scale of the source"
            )
    numbers = [value for value in values if type(value) is int and value]
    if logical.kind in (Kind.TIME, Kind.TIMESTAMP) and numbers:
        return _wrong_unit(name, logical, numbers, unit_of(logical, modes, connector), connector)
    return None


def _wrong_unit(
    name: str, logical: LogicalType, numbers: Sequence[int], unit: int, connector: str
) -> AmbiguousColumn | None:
    """Say of times that they are implausible in their unit, where they are plausible in another one."""
    if logical.kind is Kind.TIMESTAMP:
        if not (_all_within(numbers, unit, 0, _NEAR_1970_S) or _all_within(numbers, unit, _YEAR_9999_S, None)):
            return None
        others = [other for other in _UNITS if other != unit and _all_within(numbers, other, *_LIKELY_S)]
        why = f"read as {_UNITS[unit]}, its values lie near 1970, or after the year 9999"
    else:
        if connector in MYSQL_FAMILY or not any(number >= (_DAY_S + 1) * 10**unit for number in numbers):
            return None
        others = [other for other in _UNITS if other > unit and _all_within(numbers, other, 0, _DAY_S + 1)]
        why = f"read as {_UNITS[unit]}, one of its values is longer than a day"
    if not others:
        return None
    write = (
        f"write the precision of the source's column, or set capture.debezium.times: {_UNITS[others[0]]} are plausible"
    )
    return AmbiguousColumn(name, why, write)


def _all_within(numbers: Iterable[int], unit: int, least_s: int, most_s: int | None) -> bool:
    return all(
        least_s * 10**unit <= abs(number) and (most_s is None or abs(number) < most_s * 10**unit) for number in numbers
    )


def _suggestion(expected: LogicalType, values: Sequence[Any], connector: str) -> str:
    """What the source's column may be, where nothing but the target's kind and some values is known."""
    match expected.kind:
        case Kind.DATE | Kind.TIMESTAMP if any(type(v) is int and abs(v) > _YEAR_9999_S // _DAY_S for v in values):
            numbers = [value for value in values if type(value) is int and value]
            units = [unit for unit in _UNITS if _all_within(numbers, unit, *_LIKELY_S)]
            return f"{_TIMESTAMPS.get(connector, 'timestamp')}({units[0] if units else 'PRECISION'})"
        case Kind.DATE:
            return "date"
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return f"{_TIMESTAMPS.get(connector, 'timestamp')}(PRECISION)"
        case Kind.TIME:
            return "time(PRECISION)"
        case Kind.DECIMAL | Kind.INTEGER:
            return "decimal(PRECISION,SCALE)"
        case Kind.BITS:
            return "bit(LENGTH)"
        case Kind.BINARY:
            return "binary"
        case Kind.INTERVAL:
            return "interval"
        case Kind.ARRAY if expected.element is not None:
            inner = [one for value in values if isinstance(value, list) for one in value if one is not None]
            return f"{_suggestion(expected.element, inner, connector)}[]"
        case _:
            return "TYPE"


_TIMESTAMPS = {**dict.fromkeys(MYSQL_FAMILY, "datetime"), "sqlserver": "datetime2"}


def _all_read(read: Callable[[Any], str], values: Iterable[Any]) -> bool:
    try:
        for value in values:
            read(value)
    except UnknownTypeError:
        return False
    except (ValueError, ArithmeticError):
        # Whatever it is, its type may say it.
        return False
    return True


def _looks_like_base64(values: Iterable[Any]) -> bool:
    """Whether all of some texts are base64, and one of them ends as few texts do."""
    has_padding = False
    for value in values:
        try:
            if not isinstance(value, str) or not bytes_of(value):
                return False
        except ValueError:
            return False
        has_padding |= value.endswith("=")
    return has_padding
