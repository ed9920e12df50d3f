"""Whether the values of a column fit into one of another type, and what becomes of those that do not.

One rule for all that meets two types: `plan` and `setup` by it say what cannot be kept, and a change is read by it.
"""

from __future__ import annotations

import re
from enum import IntEnum

from penstock.logical import Kind, LogicalType, decimal

FINEST = 6
"""So many decimals of a second a database keeps where a type sets no limit of its own; one of text keeps all."""


class Fit(IntEnum):
    """What becomes of the source's values, the best first."""

    WHOLE = 0
    """Each of them fits, and stays what it is."""
    REFUSED = 1
    """The target refuses those that do not fit."""
    CUT = 2
    """Those that do not fit are cut or rounded, and nobody is told."""
    NONE = 3
    """They are of another sort."""


def fit(there: LogicalType, told: LogicalType) -> Fit:
    """Say what becomes of values of the source's type, `told`, in a column of the target's, `there`."""
    if there == told and not told.is_finer_than(FINEST):
        return Fit.WHOLE
    match there.kind, told.kind:
        case Kind.ARRAY, Kind.ARRAY if there.element is not None and told.element is not None:
            return fit(there.element, told.element)
        case Kind.INTEGER | Kind.DECIMAL, Kind.INTEGER | Kind.DECIMAL:
            return _of_numbers(there, told)
        case Kind.FLOAT, Kind.FLOAT:
            return Fit.WHOLE if (there.bits or 0) >= (told.bits or 0) else Fit.CUT
        case Kind.STRING, Kind.STRING | Kind.ENUM:
            return _of_texts(there, told)
        case Kind.STRING, _ if told.is_finer_than(FINEST):
            return Fit.WHOLE if there.length is None and not there.is_padded else Fit.NONE
        case Kind.BITS, Kind.BITS:
            return Fit.WHOLE if there.length is None else Fit.REFUSED
        case Kind.TIME | Kind.TIMETZ | Kind.TIMESTAMP | Kind.TIMESTAMPTZ, kind if kind is there.kind:
            finest = FINEST if told.precision is None else told.precision
            return Fit.WHOLE if (FINEST if there.precision is None else there.precision) >= finest else Fit.CUT
        case Kind.INTERVAL, Kind.TIME:
            # Of more than a day, too, and below zero, which MySQL's times may be.
            return Fit.CUT if told.is_finer_than(FINEST) else Fit.WHOLE
        case Kind.ENUM, Kind.ENUM:
            return Fit.WHOLE if set(told.values) <= set(there.values) else Fit.REFUSED
        case Kind.OTHER, Kind.OTHER | Kind.ENUM | Kind.STRING:
            # What only this database knows is text to the others: an address, a range, a label of its enums.
            return Fit.REFUSED
        case _:
            return Fit.WHOLE if there.kind is told.kind else Fit.NONE


_DECIMALS = re.compile(r"\.([0-9]*?)0*(?![0-9])")


def is_whole(there: LogicalType, value: str) -> bool:
    """Whether one value, as canonical text, keeps all its decimals in a column that cuts others of its type."""
    match there.kind:
        case Kind.DECIMAL:
            finest = there.scale or 0
        case Kind.TIME | Kind.TIMETZ | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            finest = FINEST if there.precision is None else there.precision
        case _:
            return False
    found = _DECIMALS.search(value)
    return finest >= 0 and "e" not in value.lower() and (found is None or len(found.group(1)) <= finest)


def is_cast_otherwise(there: LogicalType, told: LogicalType) -> bool:
    """Whether a cast inside a database makes another value than the text of the first one says, as of 0.1 or of 'a  '.

    What waits while both sides are altered would differ for good, so neither type stands for the other.
    """
    if there.element is not None and told.element is not None:
        return is_cast_otherwise(there.element, told.element)
    is_other_float = there.kind is told.kind is Kind.FLOAT and there.bits != told.bits
    return is_other_float or (there.kind is Kind.STRING and told.is_padded and not there.is_padded)


_DIGITS = {8: 3, 16: 5, 24: 8, 32: 10, 64: 19}
"""How many digits the largest integer of so many bits has."""


def _of_numbers(there: LogicalType, told: LogicalType) -> Fit:
    if there.kind is Kind.INTEGER and told.kind is Kind.INTEGER:
        return Fit.WHOLE if (there.bits or 0) >= (told.bits or 0) else Fit.REFUSED
    if there.kind is Kind.INTEGER:
        if told.scale is None or told.scale > 0:
            return Fit.NONE
        most = None if told.precision is None else 10 ** (told.precision - told.scale) - 1
        return Fit.REFUSED if most is None or most >= 1 << ((there.bits or 0) - 1) else Fit.WHOLE
    given = decimal(_DIGITS.get(told.bits or 0, 19), 0) if told.kind is Kind.INTEGER else told
    if there.precision is None:
        return Fit.WHOLE
    if given.scale is None or (there.scale or 0) < given.scale:
        return Fit.CUT
    if given.precision is None or there.precision - (there.scale or 0) < given.precision - given.scale:
        return Fit.REFUSED
    return Fit.WHOLE


def _of_texts(there: LogicalType, told: LogicalType) -> Fit:
    if there.is_padded and not told.is_padded:
        # Blanks at its end are taken for padding.
        return Fit.CUT
    longest = max(map(len, told.values), default=0) if told.kind is Kind.ENUM else told.length
    is_long_enough = there.length is None or (longest is not None and longest <= there.length)
    return Fit.WHOLE if is_long_enough else Fit.REFUSED
