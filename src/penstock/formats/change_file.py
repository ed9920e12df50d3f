"""Data files of an archive: the change stream as bytes, and back; docs/change-files.md is their description.

A file is JSON lines, compressed, or Parquet. A line holds the columns of the stream that are not null: the plain ones
first, then `key`, `before`, `after` and `meta` as the JSON objects that they are. Both directions work on whole
columns: a Python object per row would cost more than all the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock import change as c
from penstock.change import Op
from penstock.errors import MalformedInputError
from penstock.text import count

_TEXT = pa.large_string()
"""The images of one row may be too large for one text of the ordinary kind."""

_IMAGES = (c.KEY, c.BEFORE, c.AFTER, c.META)
"""The columns that hold JSON objects, in the order in which they end a line."""

_PLAIN = tuple(name for name in c.ARROW_SCHEMA.names if name not in _IMAGES)

_PLAIN_SCHEMA = pa.schema([c.ARROW_SCHEMA.field(name) for name in _PLAIN])

_NEEDS_ESCAPE = r'["\\\x00-\x1f]'

_NEWLINE, _OPEN, _CLOSE = ord("\n"), ord("{"), ord("}")

_GZIP_LEVEL = 1
"""Higher levels save little of what images take, and cost a multiple of everything else."""

_FEW_VALUES = [c.SOURCE, c.TXN_ID, c.OP, c.SCHEMA_NAME, c.TABLE_NAME, c.TABLE_VERSION, c.COMMIT_SCN, c.COMMITTED_AT]
"""Columns of which many rows have the same value."""


class Encoding(StrEnum):
    """How the data files of an archive are written."""

    CHANGES = "changes"
    PARQUET = "parquet"

    @property
    def suffix(self) -> str:
        """How the names of such files end."""
        match self:
            case Encoding.CHANGES:
                return ".jsonl.gz"
            case Encoding.PARQUET:
                return ".parquet"
            case _:
                assert_never(self)


def encode(rows: pa.Table, encoding: Encoding) -> pa.Buffer:
    """Write change-stream rows as the content of a data file.

    Raises:
        MalformedInputError: An image is not one JSON object on one line.
    """
    match encoding:
        case Encoding.CHANGES:
            return pa.Codec("gzip", compression_level=_GZIP_LEVEL).compress(encode_lines(rows))
        case Encoding.PARQUET:
            sink = pa.BufferOutputStream()
            pq.write_table(rows, sink, compression="zstd", use_dictionary=_FEW_VALUES, row_group_size=len(rows) or 1)
            return sink.getvalue()
        case _:
            assert_never(encoding)


def decode(content: pa.Buffer | bytes, encoding: Encoding, *, where: str) -> pa.RecordBatch:
    """Read what `encode` wrote: the same rows, in the same order, down to the byte.

    Args:
        where: What to call the file.

    Raises:
        MalformedInputError: It is something else.
    """
    try:
        if len(content) == 0:
            # Of no bytes at all gzip makes no lines.
            raise ValueError("the file is empty")
        match encoding:
            case Encoding.CHANGES:
                with pa.CompressedInputStream(pa.BufferReader(content), "gzip") as stream:
                    rows = _decode_lines(stream.read_buffer())
            case Encoding.PARQUET:
                # On this thread alone: one of Arrow's own may be the last to let go of Python's bytes, and where Python
                # ends at that moment, the whole process is aborted (https://github.com/apache/arrow/issues/34314).
                with pq.ParquetFile(pa.BufferReader(content)) as file:
                    rows = file.read(use_threads=False).select(c.ARROW_SCHEMA.names).cast(c.ARROW_SCHEMA)
            case _:
                assert_never(encoding)
        _refuse_incomplete(rows)
    except (pa.ArrowException, OSError, ValueError, KeyError) as exc:
        # The text of the cause may repeat a value.
        raise MalformedInputError("file does not hold the change stream", where=where) from exc
    return _one_batch(rows)


def encode_lines(rows: pa.Table) -> pa.Buffer:
    """Write change-stream rows as JSON lines, not compressed.

    Raises:
        MalformedInputError: An image is not one JSON object on one line.
    """
    batch = _one_batch(rows)
    lines = _lines(batch)
    _, offsets, content = lines.buffers()
    if content is None:
        return pa.py_buffer(b"")
    start, end = np.frombuffer(offsets, np.int64)[[lines.offset, lines.offset + len(lines)]]
    written = content.slice(start, end - start)
    if np.count_nonzero(np.frombuffer(written, np.uint8) == _NEWLINE) != len(lines):
        raise MalformedInputError("an image holds a line feed", where=f"one of {len(lines)} changes")
    return written


def _lines(batch: pa.RecordBatch) -> pa.Array:
    """The line of each row, each with its line feed."""
    written: dict[str, pa.Array] = {}
    for name in _PLAIN:
        if batch[name].null_count < len(batch) or not batch.schema.field(name).nullable:
            written[name] = _plain(batch[name])
    for name in _IMAGES:
        if batch[name].null_count < len(batch):
            written[name] = _image(batch[name])
    members = []
    for name, texts in written.items():
        # `source` comes first, and is never null: a comma before every other member.
        before = "{" if name == c.SOURCE else ","
        member = _joined(_literal(f'{before}"{name}":'), texts)
        members.append(pc.fill_null(member, _literal("")) if member.null_count else member)
    return _joined(*members, _literal("}\n"))


def _plain(values: pa.Array) -> pa.Array:
    if pa.types.is_integer(values.type):
        return pc.cast(values, _TEXT)
    if pa.types.is_timestamp(values.type):
        distinct = values.dictionary_encode()
        # Arrow writes `2024-01-02 03:04:05.678000Z`.
        texts = pc.replace_substring(pc.cast(distinct.dictionary, _TEXT), " ", "T")
        return _joined(_literal('"'), texts, _literal('"')).take(distinct.indices)
    return _quoted(values)


def _quoted(texts: pa.Array) -> pa.Array:
    """Each text as a JSON string; most of them stand in many rows."""
    distinct = texts.dictionary_encode()
    values = pc.cast(distinct.dictionary, _TEXT)
    if pc.any(pc.match_substring_regex(values, _NEEDS_ESCAPE)).as_py():
        quoted = pa.array([json.dumps(value, ensure_ascii=False) for value in values.to_pylist()], _TEXT)
    else:
        quoted = _joined(_literal('"'), values, _literal('"'))
    return quoted.take(distinct.indices)


def _image(images: pa.Array) -> pa.Array:
    is_object = pc.and_(pc.starts_with(images, "{"), pc.ends_with(images, "}"))
    if not pc.all(is_object).as_py():
        raise MalformedInputError("an image is not a JSON object", where=f"one of {len(images)} changes")
    return pc.cast(images, _TEXT)


def _joined(*pieces: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, _literal(""))


def _literal(text: str) -> pa.Scalar:
    return pa.scalar(text, _TEXT)


def _decode_lines(content: pa.Buffer) -> pa.Table:
    """Cut lines into the part of plain columns, which Arrow parses, and the images, which stay the text they are.

    A JSON string holds no quote without a backslash before it, and an image no object, so `,"before":{` stands nowhere
    else in a line than where that member begins, but perhaps in `meta`, which is the last.
    """
    text = np.frombuffer(content, np.uint8)
    # One entry per line from here on: where its first byte is, and its line feed.
    ends = np.flatnonzero(text == _NEWLINE)
    if len(ends) == 0 or ends[-1] != len(text) - 1:
        if len(text) == 0:
            return c.ARROW_SCHEMA.empty_table()
        raise ValueError("the last line has no end")
    starts = np.r_[0, ends[:-1] + 1]
    marks = _find_images(text, ends)
    # Where the member before ends: at first all of a line but its last brace, then what is left of each image.
    edge = ends - 1
    if (edge <= starts).any() or (text[edge] != _CLOSE).any():
        raise ValueError("a line is not an object")
    columns: dict[str, pa.Array] = {}
    for name in reversed(_IMAGES):
        mark = marks[name]
        is_given = mark >= 0
        begin = np.where(is_given, mark + len(_mark(name)), edge)
        if (begin > edge).any():
            raise ValueError("members are in another order")
        columns[name] = pc.cast(_cut(content, begin, edge, is_given), pa.string())
        edge = np.where(is_given, mark, edge)
    columns |= _parse_plain(_cut(content, starts, edge, np.ones(len(starts), bool)))
    return pa.table([columns[name] for name in c.ARROW_SCHEMA.names], schema=c.ARROW_SCHEMA)


def _find_images(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> Mapping[str, NDArray[np.int64]]:
    """For each kind of image, where its member begins in each line; -1 for lines that have none."""
    opens = np.flatnonzero(text == _OPEN)
    line = np.searchsorted(ends, opens)
    found: dict[str, NDArray[np.int64]] = {}
    meta = np.full(len(ends), len(text))
    for name in reversed(_IMAGES):
        pattern = np.frombuffer(_mark(name), np.uint8)
        # The brace is behind the mark: compare what is before each brace, as long as there is anything to compare.
        at = opens - len(pattern)
        is_here = at >= 0
        for offset in reversed(range(len(pattern))):
            is_here[is_here] = text[at[is_here] + offset] == pattern[offset]
        at, lines = at[is_here], line[is_here]
        is_outside = at <= meta[lines]
        at, lines = at[is_outside], lines[is_outside]
        # The first of each line.
        lines, first = np.unique(lines, return_index=True)
        found[name] = np.full(len(ends), -1)
        found[name][lines] = at[first]
        if name == c.META:
            meta[lines] = at[first]
    return found


def _mark(name: str) -> bytes:
    return f',"{name}":'.encode()


def _cut(content: pa.Buffer, begin: NDArray[np.int64], end: NDArray[np.int64], is_given: NDArray[np.bool_]) -> pa.Array:
    """The texts that lie between two places each, which follow each other; null where none is given."""
    # Offsets of texts that alternate: the wanted one, and what lies between it and the next.
    offsets = np.column_stack([begin, end]).ravel()
    pieces = pa.Array.from_buffers(_TEXT, len(offsets) - 1, [None, pa.py_buffer(offsets), content])
    wanted = pieces.take(pa.array(np.arange(len(begin)) * 2, mask=~is_given))
    wanted.validate(full=True)
    return wanted


def _parse_plain(heads: pa.Array) -> Mapping[str, pa.Array]:
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(heads)], pa.int64()), heads)
    lines = _joined(pc.binary_join(whole, _literal("}\n")), _literal("}\n"))[0].as_buffer()
    table = paj.read_json(
        pa.BufferReader(lines),
        read_options=paj.ReadOptions(use_threads=False, block_size=lines.size + 1),
        parse_options=paj.ParseOptions(explicit_schema=_PLAIN_SCHEMA, unexpected_field_behavior="error"),
    )
    if len(table) != len(heads):
        raise ValueError("a line is not an object")
    return {name: table[name].combine_chunks() for name in _PLAIN}


def _refuse_incomplete(rows: pa.Table) -> None:
    lacking = [f.name for f in c.ARROW_SCHEMA if not f.nullable and rows[f.name].null_count]
    if lacking:
        raise ValueError(f"a change lacks {', '.join(lacking)}")
    if not pc.all(pc.is_in(rows[c.OP], pa.array([op.value for op in Op]))).as_py() and len(rows):
        raise ValueError("unknown operation")


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    batches = rows.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], c.ARROW_SCHEMA)
    if len(batches) > 1:
        raise MalformedInputError("too much for one file", where=count(len(rows), "change"))
    return batches[0]
