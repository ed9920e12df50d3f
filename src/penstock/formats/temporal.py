"""Dates and times as canonical text, from numbers since 1970 and from ISO texts, for any year a database can hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np

DAY_US = 86_400_000_000

_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
"""From -4713-11-24 to 5874897-12-31, what PostgreSQL's dates reach; no other database's reach as far."""

_EPOCH = datetime(1970, 1, 1)
"""Wall time, without a zone."""

FIRST_SECOND, END_SECOND = -62_135_596_800, 253_402_300_800
"""From the year 1 to the end of the year 9999, which the libraries know."""

MICROSECONDS = 6

_INFINITIES = {
    (9_223_372_036_825_200, 3): "infinity",
    (-9_223_372_036_832_400, 3): "-infinity",
    (9_223_372_036_825_200_000, 6): "infinity",
    (-9_223_372_036_832_400_000, 6): "-infinity",
    (2**63 - 1, 9): "infinity",
    (-(2**63), 9): "-infinity",
}
"""What Debezium makes of PostgreSQL's infinite timestamps, by the digits of the unit."""

_DATE = r"([+-]?\d{4,9})-(\d\d)-(\d\d)"
_TIME = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
_ZONE = r"(Z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)"
_ISO_DATE = re.compile(rf"{_DATE}Z?", re.ASCII)
_ISO_TIME = re.compile(rf"{_TIME}{_ZONE}?", re.ASCII)
_ISO_TIMESTAMP = re.compile(rf"{_DATE}[T ]{_TIME}{_ZONE}?(?:\[[^\]]*\])?", re.ASCII)
_PLAIN_UTC = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z", re.ASCII)
_DURATION = re.compile(
    r"(-?)P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)W)?(?:(-?\d+)D)?"
    r"(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d{1,9}))?S)?)?",
    re.ASCII,
)


class OutOfRangeError(ValueError):
    """A number that is no date or time any database holds; its text never repeats the number."""


@lru_cache(16384)
def date_text(days: int) -> str:
    """Write days since 1970-01-01.

    Raises:
        OutOfRangeError: No database has such a date.
    """
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise OutOfRangeError("is a date outside of what databases hold")
    year, month, day = _civil(days)
    return f"{year:04}-{month:02}-{day:02}" if year > 0 else f"{1 - year:04}-{month:02}-{day:02} BC"


def time_text(value: int, digits: int) -> str:
    """Write units of 10^-`digits` seconds since midnight, as many as there are: MySQL's times pass a day, and zero."""
    sign = "-" if value < 0 else ""
    seconds, fraction = divmod(abs(value), 10**digits)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{sign}{hour:02}:{minute:02}:{second:02}.{_padded(fraction, digits)}"


def timestamp_text(value: int, digits: int) -> str:
    """Write units of 10^-`digits` seconds since 1970-01-01, without a zone.

    Raises:
        OutOfRangeError: No database has such a time.
    """
    if digits <= MICROSECONDS:
        us = value * 10 ** (MICROSECONDS - digits)
        if FIRST_SECOND <= us // 10**MICROSECONDS < END_SECOND:
            return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds")
    if (end := _INFINITIES.get((value, digits))) is not None:
        return end
    days, rest = divmod(value, 86_400 * 10**digits)
    date, era = _split_era(date_text(days))
    return f"{date}T{time_text(rest, digits)}{era}"


def timestamp_texts(values: Sequence[int], digits: int) -> list[str]:
    """As `timestamp_text` of each, for those between `FIRST_SECOND` and `END_SECOND`, of at most six digits."""
    us = np.array(values, np.int64) * 10 ** (MICROSECONDS - digits)
    texts: list[str] = np.datetime_as_string(us.view("datetime64[us]")).tolist()
    return texts


def iso_date_text(text: str) -> str:
    """Write an ISO date; raises `ValueError` for another text."""
    if text in ("infinity", "-infinity"):
        return text
    found = _ISO_DATE.fullmatch(text)
    if found is None:
        raise ValueError("is not a date")
    return date_text(_days(*map(int, found.groups())))


def iso_time_text(text: str, *, with_offset: bool) -> str:
    """Write an ISO time of day; with its offset, where the type has one. Raises `ValueError` for another text."""
    found = _ISO_TIME.fullmatch(text)
    if found is None:
        raise ValueError("is not a time")
    hour, minute, second, fraction, zone = found.groups()
    if int(hour) > 24 or int(minute) > 59 or int(second or 0) > 60:
        raise ValueError("is not a time")
    plain = f"{hour}:{minute}:{second or '00'}.{_decimals(fraction or '')}"
    if not with_offset:
        return plain
    if zone in (None, "Z"):
        return plain + "+00:00"
    digits = zone[1:].replace(":", "")
    parts = [digits[at : at + 2] for at in range(0, len(digits), 2)]
    return plain + zone[0] + ":".join(parts if len(parts) > 1 else [*parts, "00"])


def zoned_time_text(text: str) -> str:
    """Write an ISO time of a column with offsets, see `iso_time_text`."""
    return iso_time_text(text, with_offset=True)


def local_time_text(text: str) -> str:
    """Write an ISO time of a column without offsets, see `iso_time_text`."""
    return iso_time_text(text, with_offset=False)


def iso_timestamp_text(text: str, *, is_instant: bool) -> str:
    """Write an ISO date and time: in UTC where it is an instant, else as its clock shows.

    Raises:
        ValueError: It is another text, or an instant without an offset.
    """
    if is_instant and (found := _PLAIN_UTC.fullmatch(text)) is not None and not text.startswith("0000"):
        date, clock, fraction = found.groups()
        # Ten times as quick as what follows, and what nearly every such text is; it raises for the 31st of June.
        datetime.fromisoformat(f"{date}T{clock}")
        return f"{date}T{clock}.{_decimals(fraction or '')}+00:00"
    if text in ("infinity", "-infinity"):
        return text
    found = _ISO_TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError("is not a date and time")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    days = _days(int(year), int(month), int(day))
    if int(hour) > 24 or int(minute) > 59 or int(second or 0) > 60:
        raise ValueError("is not a date and time")
    seconds = (int(hour) * 60 + int(minute)) * 60 + int(second or 0)
    if is_instant:
        if zone is None:
            raise ValueError("is an instant without an offset")
        seconds -= offset_s(zone)
    days, rest = divmod(days * 86_400 + seconds, 86_400)
    digits = max(6, len(fraction or ""))
    date, era = _split_era(date_text(days))
    clock = time_text(rest * 10**digits + int((fraction or "0").ljust(digits, "0")), digits)
    return f"{date}T{clock}{'+00:00' if is_instant else ''}{era}"


def zoned_timestamp_text(text: str) -> str:
    """Write an ISO timestamp of a column with offsets, see `iso_timestamp_text`."""
    return iso_timestamp_text(text, is_instant=True)


def local_timestamp_text(text: str) -> str:
    """Write an ISO timestamp of a column without offsets, see `iso_timestamp_text`."""
    return iso_timestamp_text(text, is_instant=False)


def offset_s(zone: str) -> int:
    """Return the seconds that an offset like `+05:30` is ahead of UTC."""
    if zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(6, "0")
    seconds = (int(digits[:2]) * 60 + int(digits[2:4])) * 60 + int(digits[4:6])
    return -seconds if zone[0] == "-" else seconds


def civil_text(year: int, month: int, day: int) -> str:
    """Write a date given in parts, the year before year 1 as 0; raises `ValueError` where there is no such day."""
    return date_text(_days(year, month, day))


def days_of(text: str) -> int:
    """Return days since 1970-01-01 of a date as canonical text; raises `ValueError` for another text."""
    year, month, day = text.removesuffix(" BC").split("-")
    return _days(1 - int(year) if text.endswith(" BC") else int(year), int(month), int(day))


def duration_text(text: str) -> str:
    """Write an ISO duration without its zero parts; raises `ValueError` for another text."""
    found = _DURATION.fullmatch(text)
    if found is None or text.rstrip("-").endswith(("P", "T")):
        raise ValueError("is not an interval")
    negated, years, months, weeks, days, hours, minutes, sign, seconds, fraction = found.groups()
    factor = -1 if negated else 1
    calendar = ((years, "Y", 1), (months, "M", 1), (weeks, "D", 7), (days, "D", 1))
    date = [(factor * int(number) * times, unit) for number, unit, times in calendar if number]
    clock = [(factor * int(number), unit) for number, unit in ((hours, "H"), (minutes, "M")) if number]
    digits = (fraction or "").rstrip("0")
    whole = f"{int(seconds or 0)}{'.' if digits else ''}{digits}"
    has_seconds = whole != "0"
    minus = "-" if has_seconds and bool(sign) != (factor < 0) else ""
    front = "".join(f"{number}{unit}" for number, unit in date if number)
    back = "".join(f"{number}{unit}" for number, unit in clock if number)
    back += f"{minus}{whole}S" if has_seconds else ""
    return f"P{front}{'T' if back else ''}{back}" if front or back else "PT0S"


def span_text(value: int, digits: int) -> str:
    """Write units of 10^-`digits` seconds as an ISO duration of hours, minutes and seconds: months were lost before."""
    seconds, fraction = divmod(abs(value), 10**digits)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    sign = "-" if value < 0 else ""
    return duration_text(f"PT{sign}{hour}H{sign}{minute}M{sign}{second}.{fraction:0{digits}}S")


def _padded(fraction: int, digits: int) -> str:
    return _decimals(f"{fraction:0{digits}}")


def _decimals(digits: str) -> str:
    """Write the decimals of a second: six of them, and finer ones only as far as they say something."""
    return digits[:6].ljust(6, "0") + digits[6:].rstrip("0")


def _split_era(date: str) -> tuple[str, str]:
    return (date[:-3], " BC") if date.endswith(" BC") else (date, "")


def _civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day of the proleptic Gregorian calendar; the year before year 1 is 0."""
    # Years begin in March here, so that the day that some of them lack is their last one.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1


def _days(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01; the inverse of `_civil`. Raises `ValueError` where there is no such day."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError("is not a date")
    shifted_year = year - (month <= 2)
    era, year_of_era = divmod(shifted_year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    days = era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468
    if _civil(days) != (year, month, day):
        raise ValueError("is not a date")
    return days
