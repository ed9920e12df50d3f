"""Images in bulk: columns of a whole batch of JSON images as Arrow arrays, without a Python object per row."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj

from penstock.errors import MalformedInputError

_PLAIN_NAME = re.compile(r"[^\x00-\x1f\"\\\\,}][^\x00-\x1f\"\\\\]*")

_NULL_MEMBER = b'":null'
"""How a member that is null is written. Inside a string the quote before the colon has a backslash before it."""


def parse_images(images: pa.Array, columns: Sequence[str], *, are_all: bool = False) -> Mapping[str, pa.Array]:
    """Return the values of `columns` as string arrays, one value per image.

    A value is null where the column is SQL NULL, where it is absent, and where the image itself is null;
    `is_present` and `is_complete` tell these apart.

    Args:
        are_all: The images hold no other columns; otherwise those are skipped.

    Raises:
        MalformedInputError: An image is not a JSON object of strings and nulls, or `are_all` does not hold.
    """
    if images.null_count == len(images) or not columns:
        return {name: pa.nulls(len(images), pa.string()) for name in columns}
    malformed = MalformedInputError(
        "image is not a JSON object of strings and nulls, or holds an unknown column",
        where=f"one of {len(images)} changes",
    )
    if images.null_count:
        images = pc.fill_null(images, "{}")
    # Arrow reads lines, and crashes on one that is `null`.
    is_object = pc.and_(pc.starts_with(images, "{"), pc.ends_with(images, "}"))
    if not pc.all(is_object).as_py():
        raise malformed
    lines = _join_lines(images)
    try:
        table = paj.read_json(
            pa.BufferReader(lines),
            read_options=paj.ReadOptions(use_threads=False, block_size=lines.size + 1),
            parse_options=paj.ParseOptions(
                explicit_schema=pa.schema([(name, pa.string()) for name in columns]),
                unexpected_field_behavior="error" if are_all else "ignore",
            ),
        )
    except pa.ArrowInvalid as exc:
        # Arrow's text may repeat a value.
        raise malformed from exc
    if len(table) != len(images):
        raise malformed
    return {name: _one_chunk(table[name]) for name in columns}


def is_present(images: pa.Array, column: str) -> pa.Array:
    """Tell, for each image, whether it has the column at all, be it null; False for a null image."""
    if not _PLAIN_NAME.fullmatch(column):
        return pa.array([text is not None and column in json.loads(text) for text in images.to_pylist()], pa.bool_())
    # Inside a value the quotes would have to be escaped, and a comma or brace that ends one is followed by
    # a quote, but then not by this name.
    member = json.dumps(column, ensure_ascii=False) + ":"
    first, later = pc.match_substring(images, "{" + member), pc.match_substring(images, "," + member)
    return pc.fill_null(pc.or_(first, later), False)


def find_present(images: pa.Array, parsed: Mapping[str, pa.Array]) -> Mapping[str, pa.Array]:
    """Tell `is_present` for every parsed column; quicker, as long as no image holds a null."""
    if _NULL_MEMBER in _content(images):
        return {name: is_present(images, name) for name in parsed}
    return {name: values.is_valid() for name, values in parsed.items()}


def is_complete(images: pa.Array, parsed: Mapping[str, pa.Array]) -> bool:
    """Whether every image that is not null has all its table's columns, which were parsed with `are_all`.

    True means that each null in `parsed` was written as null; False may also mean that it could not be told.
    """
    nulls = sum(values.null_count for values in parsed.values()) - images.null_count * len(parsed)
    if nulls == 0:
        return True
    content = _content(images)
    written = content.count(_NULL_MEMBER) - content.count(b"\\" + _NULL_MEMBER)
    return bool(written == nulls)


def _content(images: pa.Array) -> bytes:
    """All images one after the other: Python searches that an order of magnitude faster than Arrow each of them."""
    given = images.drop_null()
    _, offsets, content = given.buffers()
    if len(given) == 0 or content is None:
        return b""
    start, end = np.frombuffer(offsets, np.int32)[[given.offset, given.offset + len(given)]]
    return bytes(memoryview(content)[start:end])


def _join_lines(images: pa.Array) -> pa.Buffer:
    whole = pa.ListArray.from_arrays(pa.array([0, len(images)], pa.int32()), images)
    return pc.binary_join(whole, "\n")[0].as_buffer()


def _one_chunk(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks)
