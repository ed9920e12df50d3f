"""Dates and times whose parts are the members of a structure, as canonical text."""

from __future__ import annotations

from typing import Any

from penstock.formats import temporal
from penstock.formats.debezium.canonical import member_of
from penstock.formats.debezium.value_reader import UnfitError


def date_text(value: Any) -> str:
    """Write a date."""
    return _special(value) or temporal.civil_text(*_parts(value, "year", "month", "day"))


def time_text(value: Any) -> str:
    """Write a time; of nanoseconds only those that say something."""
    hour, minute, second, nanos = _parts(value, "hour", "minute", "second", "nanos")
    total = (hour * 60 + minute) * 60 + second
    return (
        temporal.time_text(total * 10**9 + nanos, 9)
        if nanos % 1000
        else temporal.time_text(total * 10**6 + nanos // 1000, 6)
    )


def timestamp_text(value: Any) -> str:
    """Write a timestamp without an offset."""
    if (end := _special(value)) is not None:
        return end
    date, _, bc = date_text(value).partition(" ")
    return f"{date}T{time_text(value)}{bc and ' BC'}"


def instant_text(value: Any) -> str:
    """Write a timestamp with its offset, in UTC."""
    if (end := _special(value)) is not None:
        return end
    offset = value.get("offsetSeconds")
    if type(offset) is not int:
        raise UnfitError("is an instant without an offset")
    year, month, day, hour, minute, second, nanos = _parts(
        value, "year", "month", "day", "hour", "minute", "second", "nanos"
    )
    sign, (minutes, seconds) = "-" if offset < 0 else "+", divmod(abs(offset), 60)
    zone = f"{sign}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    fraction = f"{nanos:09}" if nanos % 1000 else f"{nanos // 1000:06}"
    # An ISO text may have a sign only before a year of more than four digits, or of before the year 0.
    iso = f"{year:05}" if year < 0 else f"{year:04}"
    return temporal.iso_timestamp_text(
        f"{iso}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction}{zone}", is_instant=True
    )


def duration_text(value: Any) -> str:
    """Write a duration."""
    years, months, days, hours, minutes, seconds, nanos = _parts(
        value, "years", "months", "days", "hours", "minutes", "seconds", "nanos"
    )
    total = seconds * 10**9 + nanos
    whole, rest = divmod(abs(total), 10**9)
    second = f"{'-' if total < 0 else ''}{whole}.{rest:09}"
    return temporal.duration_text(f"P{years}Y{months}M{days}DT{hours}H{minutes}M{second}S")


def _parts(value: Any, *names: str) -> list[int]:
    parts = [member_of(value, name) for name in names]
    if any(type(part) is not int for part in parts):
        raise UnfitError("lacks a part of a date or time")
    return parts


def _special(value: Any) -> str | None:
    """Return the end of time that a structured date or timestamp may be; refuse what else it may say."""
    match str(member_of(value, "specialValue") or "").upper():
        case "":
            return None
        case "INFINITY" | "POSITIVE_INFINITY" | "+INFINITY":
            return "infinity"
        case "NEGATIVE_INFINITY" | "-INFINITY":
            return "-infinity"
        case _:
            raise UnfitError("is a special date that has no canonical text")
