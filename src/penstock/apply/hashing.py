"""64-bit hashes of column values, a whole batch at a time.

Equal values under the target's equality have equal hashes: numbers are normalised first, so 1.0 meets 1
and 1.00. Types whose equality is looser than their text in other ways are not hashed at all, see `reader`.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x6A09E667F3BCC909)


def hash_text(values: pa.Array) -> NDArray[np.uint64]:
    """Hash each string; a null has a hash of its own."""
    hashes = _mix(_polynomial(pc.fill_null(values, "")))
    if values.null_count:
        hashes[values.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def hash_rows(columns: list[NDArray[np.uint64]], space: str) -> NDArray[np.uint64]:
    """Combine the hashes of several columns, in order, inside a named space of values."""
    combined = np.full(len(columns[0]), hash_name(space))
    for column in columns:
        combined = _mix((combined ^ column) * _PRIME)
    return combined


@cache
def hash_name(name: str) -> np.uint64:
    """Hash one string."""
    return np.uint64(hash_text(pa.array([name]))[0])


def normalise_number(values: pa.Array) -> pa.Array:
    """Write equal numbers alike: no trailing zeros behind the point, no negative zero."""
    if not pc.any(pc.match_substring(values, ".")).as_py() and not pc.any(pc.starts_with(values, "-0")).as_py():
        return values
    shorter = pc.replace_substring_regex(values, r"^(-?[0-9]+\.[0-9]*?)0+$", r"\1")
    shorter = pc.replace_substring_regex(shorter, r"\.$", "")
    return pc.replace_substring_regex(shorter, r"^-0$", "0")


def _polynomial(values: pa.Array) -> NDArray[np.uint64]:
    """The bytes of each string as coefficients of a polynomial in an odd number, modulo 2**64."""
    if len(values) == 0:
        return np.zeros(0, np.uint64)
    # Arrow keeps all strings end to end: string n is the bytes from bounds[n] up to bounds[n + 1].
    bounds = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    start, end = int(bounds[0]), int(bounds[-1])
    content = values.buffers()[2]
    data = np.frombuffer(content, np.uint8)[start:end] if content is not None else np.zeros(0, np.uint8)
    offsets = bounds.astype(np.int64) - start
    lengths = np.diff(offsets)
    # For each byte its place in its own string, and so the power of the prime that it is multiplied by.
    position = np.arange(len(data)) - np.repeat(offsets[:-1], lengths)
    powers = np.cumprod(np.full(max(int(lengths.max()), 1), _PRIME))
    # Running sums over all bytes: what a string adds is the difference between its end and its start.
    sums = np.r_[np.uint64(0), np.cumsum((data.astype(np.uint64) + np.uint64(1)) * powers[position])]
    return np.asarray(sums[offsets[1:]] - sums[offsets[:-1]], np.uint64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values ^ (values >> np.uint64(32))
    values = values * _PRIME
    return values ^ (values >> np.uint64(29))
