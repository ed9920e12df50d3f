"""Images in bulk: columns of a whole batch of JSON images as Arrow arrays, without a Python object per row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj

from penstock.errors import MalformedInputError, OperatorError
from penstock.external_values import MARK

_PLAIN_NAME = re.compile(r"[^\x00-\x1f\"\\\\,}][^\x00-\x1f\"\\\\]*")

_STRING = r'"(?:[^"\\]|\\.)*"'
_VALUE = rf"(?:null|{_STRING}|\{{(?:{_STRING}|[^\"{{}}])*\}})"
"""The last one is what an image tells of a value that is elsewhere."""

_CONTROL = r"[\x00-\x1f]"

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
        OperatorError: The value of one of `columns` is elsewhere.
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
        _refuse_external(images, columns)
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
    """Tell `is_present` for every parsed column; quicker, since only images are looked at whose value is null."""
    if _NULL_MEMBER not in _content(images):
        return {name: values.is_valid() for name, values in parsed.items()}
    return {name: _find_present(images, name, values) for name, values in parsed.items()}


def _find_present(images: pa.Array, name: str, values: pa.Array) -> pa.Array:
    is_valid = values.is_valid()
    # Most columns are null in few images only, or in nearly all.
    is_open = pc.and_(pc.invert(is_valid), images.is_valid())
    count = pc.sum(is_open, min_count=0).as_py()
    if count == 0:
        return is_valid
    if count > len(images) // 2:
        return is_present(images, name)
    return pc.replace_with_mask(is_valid, is_open, is_present(images.filter(is_open), name))


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


def mark_external(images: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Tell which images have a value that is elsewhere; None where no image has."""
    if not any(MARK.encode() in _content(chunk) for chunk in images.chunks):
        return None
    return pc.fill_null(pc.match_substring(images, MARK), False)


def build_images(values: Mapping[str, pa.Array], present: Mapping[str, pa.Array]) -> pa.Array:
    """Write images of at least one column, in the order of the columns; the inverse of `parse_images`.

    Args:
        values: String arrays, one value per image; null is SQL NULL.
        present: For some of the columns, which images have them at all; the others are in every image.
    """
    members = []
    for name, texts in values.items():
        member = pc.binary_join_element_wise(f",{json.dumps(name, ensure_ascii=False)}:", _quoted(texts), "")
        members.append(pc.if_else(present[name], member, "") if name in present else member)
    # Each member has its comma before it, and the first one too many.
    inner = pc.ascii_ltrim(pc.binary_join_element_wise(*members, ""), ",")
    return pc.binary_join_element_wise("{", inner, "}", "")


def edit_images(
    images: pa.Array, *, drop: Iterable[str] = (), rename: Mapping[str, str] = MappingProxyType({})
) -> pa.Array:
    """Take columns out of images and give others new names, without reading a value: a fraction of the cost.

    The columns must be `are_plain`, and no new name that of a column which an image may hold.
    """
    for column in drop:
        member = re.escape(json.dumps(column, ensure_ascii=False) + ":") + _VALUE
        images = pc.replace_substring_regex(images, "," + member, "")
        images = pc.replace_substring_regex(images, r"\{" + member + ",?", "{")
    for column, name in rename.items():
        old, new = (json.dumps(text, ensure_ascii=False) + ":" for text in (column, name))
        for head in ("{", ","):
            images = pc.replace_substring(images, head + old, head + new)
    return images


def are_plain(columns: Iterable[str]) -> bool:
    """Whether each column's name is found in an image by its text alone; see `is_present`."""
    return all(_PLAIN_NAME.fullmatch(column) for column in columns)


def _refuse_external(images: pa.Array, columns: Sequence[str]) -> None:
    content = _content(images)
    for name in columns:
        if (json.dumps(name, ensure_ascii=False) + MARK).encode() in content:
            raise OperatorError(
                f"the value of column {name!r} is looked at, and is too large for its change, or only appended to",
                where=f"one of {len(images)} changes",
                do="let no rule, step or unique key depend on what this column holds",
            )


def _quoted(texts: pa.Array) -> pa.Array:
    """Each text as a JSON string, each null as `null`."""
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    is_odd = pc.fill_null(pc.match_substring_regex(texts, _CONTROL), False)
    if pc.any(is_odd).as_py():
        odd = [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts.filter(is_odd).to_pylist()]
        escaped = pc.replace_with_mask(escaped, is_odd, pa.array(odd, pa.string()))
    return pc.fill_null(pc.binary_join_element_wise('"', escaped, '"', ""), "null")


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
