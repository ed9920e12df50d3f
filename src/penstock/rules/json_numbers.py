"""Numbers inside JSON that DuckDB writes with other digits than they came with, since it holds them as doubles.

`2.50` becomes 2.5, and `123456789012345678.91` another number. Whether an expression has to do with such a number, and
loses its digits, shows when the number is exchanged: see `is_lost`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?')

_LONG = 19
"""An integer of fewer digits fits 64 bits."""

_MAYBE = r"[0-9]\.[0-9]|[0-9][eE][-+0-9]|[0-9]{19}|-0"
"""What a text holds of which a number may be written otherwise."""


def suspects(texts: Iterable[pa.Array]) -> NDArray[np.int64]:
    """Return the rows of which a text may be JSON with such a number; the arrays line up."""
    found = [pc.fill_null(pc.match_substring_regex(values, _MAYBE), False) for values in texts]
    return np.flatnonzero(np.any([np.asarray(one, bool) for one in found], axis=0)) if found else np.zeros(0, np.int64)


def exchanged(
    texts: Sequence[pa.Array], written: Callable[[Sequence[str]], Sequence[str | None]], *, by_value: bool
) -> tuple[list[pa.Array], list[pa.Array], NDArray[np.bool_]]:
    """Exchange the numbers that DuckDB writes otherwise.

    Args:
        texts: JSON, or other text; the arrays line up.
        written: Returns how DuckDB writes each of these numbers; None where it takes it for none.
        by_value: Only those which it makes another number of, and not those of which it writes a zero less.

    Returns:
        The texts with these numbers as DuckDB writes them; the texts with the next double in the place of each; and
        which rows have any.
    """
    columns = [values.to_pylist() for values in texts]
    numbers = sorted({token for values in columns for text in values for token in _numbers(text)})
    other = {
        number: as_written
        for number, as_written in zip(numbers, written(numbers), strict=True)
        if as_written is not None and as_written != number and not (by_value and _is_same(number, as_written))
    }
    beside = {number: _next(number) for number in other}
    rows = np.array(
        [any(token in other for text in row for token in _numbers(text)) for row in zip(*columns, strict=True)], bool
    )
    return [_with(values, other) for values in columns], [_with(values, beside) for values in columns], rows


def is_lost(as_it_is: pa.Array, as_written: pa.Array, beside: pa.Array) -> NDArray[np.bool_]:
    """Tell of which rows the result has lost digits: a number matters to it, and its digits do not.

    Args:
        as_it_is, as_written, beside: What an expression yields for the rows, and for those that `exchanged` returned.
    """
    return _equal(as_it_is, as_written) & ~_equal(as_it_is, beside)


def _equal(left: pa.Array, right: pa.Array) -> NDArray[np.bool_]:
    same = pc.or_(pc.fill_null(pc.equal(left, right), False), pc.and_(left.is_null(), right.is_null()))
    return np.asarray(same, bool)


def _numbers(text: str | None) -> Iterable[str]:
    return (
        token
        for token in _TOKEN.findall(text or "")
        if not token.startswith('"') and not (token.isdigit() and len(token) < _LONG)
    )


def _with(texts: Iterable[str | None], other: Mapping[str, str]) -> pa.Array:
    made = [None if text is None else _TOKEN.sub(lambda found: other.get(found[0], found[0]), text) for text in texts]
    return pa.array(made, pa.string())


def _is_same(number: str, as_written: str) -> bool:
    try:
        return Decimal(number) == Decimal(as_written)
    except InvalidOperation:
        return False


def _next(number: str) -> str:
    value = float(number)
    return repr(math.nextafter(value, math.inf if value < 0 else -math.inf)) if math.isfinite(value) else "0"
