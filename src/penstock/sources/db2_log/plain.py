"""Plain transactions: those that begin and end in one buffer, and of which every record is a row as most rows are.

They are found and followed with arrays, an entry for each record, where `transactions` makes an object of each. What is
plain is certain to mean here what `transactions` would say of it. Everything else is left to that: LOB data, what was
undone, rows that moved, tables that were altered, whatever breaks the format.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.change import Op
from penstock.sources.db2_log.bulk_columns import Bools, Bytes, Ints, lines
from penstock.sources.db2_log.catalog import Catalog
from penstock.sources.db2_log.chains import LogBeginning
from penstock.sources.db2_log.framing import PROPAGATABLE, SINGULAR, Buffer, Framing, Level, Lri
from penstock.sources.db2_log.transactions import DMS, HALF

OPS = (Op.DELETE, Op.INSERT, Op.UPDATE)
"""What rows of `Plain.rows` say by number."""

_FIRST_FUNCTION = 161
_ROW_TYPES = (0x4E, 0x52, 0x55)
_COMMIT, _ABORT = 0x84, 0x41
_PREFIX, _HEADER, _SECTION = 56, 40, 20
_LEAST_ROW = _PREFIX + _HEADER + _SECTION + 8
_LEAST_COMMIT = _HEADER + 8
_AT_ONCE = 200_000
"""Of so many records the heads are held as they are."""


@dataclass(frozen=True)
class Plain:
    """What is plain in a buffer, or in a part of it.

    Attributes:
        first, last: The identifiers of its first and of its last record.
        commits: Where the commit record of each plain transaction begins, ascending; aborted ones are left out.
        begins: Where the first record of each begins.
        committed_at_s: When each was committed.
        others: Where the records begin that are not plain, ascending.
        rows: A line for each row of a plain transaction in a table of the catalogue, in the order of commits and then
            of records: which of `commits`, where its record begins, the number of its table's version in the catalogue,
            which of `OPS`, and where its images begin, before and after; 0 for none.
        size_bytes: Of the images of each row.
    """

    first: Lri
    last: Lri
    commits: Ints
    begins: Ints
    committed_at_s: Ints
    others: Ints
    rows: Ints
    size_bytes: Ints


def find_plain(
    buffer: Buffer,
    catalog: Catalog,
    *,
    start: int,
    end: int | None,
    is_open: Collection[tuple[int, bytes]],
    beginning: LogBeginning | None = None,
) -> Plain | None:
    """Look through a buffer; None where it is empty, or nothing can be said of it: where its form is seldom, or broken.

    Args:
        start: Where the first prefix begins.
        end: Where the last record begins that is looked at; None for all.
        is_open: The transactions that have begun earlier, by log stream and identifier.
        beginning: Where the log begins; one that was open there is not plain.
    """
    form = catalog.form
    if form.level is not Level.V10 or form.framing is not Framing.FILTER or not len(buffer):
        return None
    offsets = _walk(buffer, form.endian, start, end)
    if offsets is None or not len(offsets):
        return None
    data = np.frombuffer(buffer, np.uint8)
    parts = []
    for at in range(0, len(offsets), _AT_ONCE):
        part = _heads(data, offsets[at : at + _AT_ONCE], form.endian)
        if part is None:
            return None
        parts.append(part)
    heads = np.concatenate(parts)
    lfs, lsn = heads["lfs"], heads["lsn"]
    if not np.all((lfs[1:] > lfs[:-1]) | ((lfs[1:] == lfs[:-1]) & (lsn[1:] > lsn[:-1]))):
        return None
    is_plain, commits, begins = _transactions(heads, is_open, beginning)
    is_row = is_plain & (heads["kind"] == _ROW)
    rows = heads[is_row]
    # Rows of an aborted transaction are in none, and tables that are not in the catalogue have no version.
    numbers, versions = _number_of(heads, commits)[is_row], _versions(rows, catalog)
    wanted = np.flatnonzero((numbers >= 0) & (versions >= 0))
    wanted = wanted[np.argsort(numbers[wanted], kind="stable")]
    numbers, versions, rows = numbers[wanted], versions[wanted], rows[wanted]
    table = np.column_stack([numbers, rows["at"], versions, rows["op"], rows["before"], rows["after"]])
    return Plain(
        Lri(int(lfs[0]), int(lsn[0])),
        Lri(int(lfs[-1]), int(lsn[-1])),
        heads["at"][commits],
        heads["at"][begins],
        heads["time"][commits],
        heads["at"][~is_plain],
        table,
        rows["size"].copy(),
    )


_OTHER, _ROW, _COMMITS, _ABORTS = range(4)

_HEADS = np.dtype(
    [
        ("at", "i8"),
        ("kind", "i1"),
        ("op", "i1"),
        ("lfs", "u8"),
        ("lsn", "u8"),
        ("txn", "u8"),
        ("stream", "u8"),
        ("previous", "u8"),
        ("table", "u4"),
        ("before", "i8"),
        ("after", "i8"),
        ("size", "i8"),
        ("time", "i8"),
    ]
)
"""What is kept of each record."""


def _walk(buffer: Buffer, endian: str, start: int, end: int | None) -> Ints | None:
    """Return where each record's prefix begins; None where a length is not possible."""
    length_of, size = struct.Struct(endian + "I").unpack_from, len(buffer)
    until = size if end is None else min(size, end + 1)
    at, offsets = start, []
    while at < until:
        if at + _PREFIX + _HEADER > size:
            return None
        (length,) = length_of(buffer, at + _PREFIX)
        if length < _HEADER or at + _PREFIX + length > size:
            return None
        offsets.append(at)
        at += _PREFIX + length
    return np.array(offsets, np.int64)


def _heads(data: Bytes, offsets: Ints, e: str) -> NDArray[Any] | None:
    """Return what is kept of records; None where the two identifiers of one do not agree."""
    raw = lines(data, offsets, _PREFIX + _HEADER).view(
        np.dtype(
            [
                *((name, e + "u8") for name in ("lri_type", "lfs", "lsn", "lri_type_2", "stream", "lso")),
                *(("physical", e + "u4"), ("sqlcode", e + "i4"), ("length", e + "u4")),
                *(("type", e + "u2"), ("flags", e + "u2")),
                *((name, e + "u8") for name in ("own_lsn", "own_lfs", "previous")),
                *(("tid_high", ">u2"), ("tid_low", ">u4"), ("own_stream", e + "u2")),
            ]
        )
    )[:, 0]
    if (
        np.any(raw["lri_type"] != 1)
        or np.any(raw["lri_type_2"] != 2)
        or np.any(raw["lfs"] != raw["own_lfs"])
        or np.any(raw["lsn"] != raw["own_lsn"])
        or np.any(raw["stream"] > 0xFFFF)
    ):
        return None
    heads = np.zeros(len(offsets), _HEADS)
    heads["at"], heads["lfs"], heads["lsn"] = offsets, raw["lfs"], raw["lsn"]
    heads["txn"] = _transaction_keys(raw["stream"], raw["tid_high"], raw["tid_low"])
    heads["stream"], heads["previous"] = raw["stream"], raw["previous"]
    type_, flags = raw["type"], raw["flags"]
    is_seen = (flags & PROPAGATABLE != 0) & (flags & SINGULAR == 0) & (raw["sqlcode"] == 0)
    is_timed = (type_ == _COMMIT) & (raw["length"] >= _LEAST_COMMIT)
    heads["kind"][is_timed] = _COMMITS
    heads["kind"][type_ == _ABORT] = _ABORTS
    timed = offsets[is_timed]
    if len(timed):
        heads["time"][is_timed] = lines(data, timed + _PREFIX + _HEADER, 4).view(e + "u4")[:, 0]
    ends = offsets + _PREFIX + raw["length"].astype(np.int64)
    may_be = is_seen & np.isin(type_, _ROW_TYPES) & (ends - offsets >= _LEAST_ROW)
    if np.any(may_be):
        heads[may_be] = _rows(data, heads[may_be], ends[may_be], e)
    return heads


def _rows(data: Bytes, heads: NDArray[Any], ends: Ints, e: str) -> NDArray[Any]:
    """Complete the heads of records that are long enough for a row."""
    begin = heads["at"] + _PREFIX + _HEADER
    section = np.dtype(
        [
            *(("component", "u1"), ("function", "u1"), ("table", e + "u4"), ("flags", e + "u2"), ("skipped", "V12")),
            *(("outer", "u1"), ("reserved", "u1"), ("length", e + "u2"), ("inner", "u1"), ("rest", "V3")),
        ]
    )
    raw = lines(data, begin, section.itemsize).view(section)[:, 0]
    op = raw["function"].astype(np.int64) - _FIRST_FUNCTION
    first = begin + _SECTION
    sizes = raw["length"].astype(np.int64)
    is_row = (raw["component"] == DMS) & (op >= 0) & (op < len(OPS)) & (raw["flags"] & HALF == 0)
    is_row &= (raw["outer"] == 0) & (raw["inner"] & 3 != 0) & (sizes >= 8)
    behind = first + sizes
    is_update = is_row & (op == OPS.index(Op.UPDATE))
    is_row &= is_update | (behind == ends)
    # The other half of an update: what follows has to be as long as a row, and of the same table.
    is_update &= behind + section.itemsize <= ends
    second = np.where(is_update, behind, begin)
    other = lines(data, second, section.itemsize).view(section)[:, 0]
    others = other["length"].astype(np.int64)
    is_whole = (other["component"] == DMS) & (other["function"] == raw["function"]) & (other["table"] == raw["table"])
    is_whole &= (other["outer"] == 0) & (other["inner"] & 3 != 0) & (others >= 8)
    is_whole &= second + _SECTION + others == ends
    is_row &= (op != OPS.index(Op.UPDATE)) | (is_update & is_whole)
    is_insert = op == OPS.index(Op.INSERT)
    heads["kind"] = np.where(is_row, _ROW, heads["kind"])
    heads["op"] = np.where(is_row, op, 0)
    heads["table"] = raw["table"]
    heads["before"] = np.where(is_insert, 0, first)
    heads["after"] = np.where(is_insert, first, np.where(is_update, second + _SECTION, 0))
    heads["size"] = sizes + np.where(is_update, others, 0)
    return heads


def _transaction_keys(stream: NDArray[Any], high: NDArray[Any], low: NDArray[Any]) -> NDArray[np.uint64]:
    """Return one number for each transaction: its log stream, of 16 bits, and its identifier, of 48."""
    stream, high, low = stream.astype(np.uint64), high.astype(np.uint64), low.astype(np.uint64)
    keys: NDArray[np.uint64] = (stream << np.uint64(48)) | (high << np.uint64(32)) | low
    return keys


def _transactions(
    heads: NDArray[Any], is_open: Collection[tuple[int, bytes]], beginning: LogBeginning | None
) -> tuple[Bools, Ints, Ints]:
    """Tell which records are of plain transactions, and which record ends and which begins each committed one."""
    keys, of = np.unique(heads["txn"], return_inverse=True)
    kind, count = heads["kind"], len(keys)
    numbers = np.arange(len(heads))
    ended = np.bincount(of[kind >= _COMMITS], minlength=count)
    others = np.bincount(of[kind == _OTHER], minlength=count)
    # Later ones overwrite earlier ones.
    last, first = np.zeros(count, np.int64), np.zeros(count, np.int64)
    last[of], first[of[::-1]] = numbers, numbers[::-1]
    earlier = [(stream << 48) | int.from_bytes(tid, "big") for stream, tid in is_open if stream <= 0xFFFF]
    is_plain = (ended == 1) & (others == 0) & (kind[last] >= _COMMITS) & (first != last)
    is_plain &= ~np.isin(keys, np.array(earlier, np.uint64))
    # Two that begin and one end: that of the other is missing. In a log without chains no record names another one.
    is_named = heads["previous"] > 0
    is_plain &= (np.bincount(of[~is_named], minlength=count) <= 1) | (np.bincount(of[is_named], minlength=count) == 0)
    if beginning is not None:
        begins = heads[first]
        is_cut = (begins["stream"] == beginning.stream) & (begins["previous"] > 0)
        is_plain &= ~(is_cut & (begins["previous"] < beginning.lso))
    is_committed = is_plain & (kind[last] == _COMMITS)
    by_commit = np.argsort(last[is_committed])
    return is_plain[of], last[is_committed][by_commit], first[is_committed][by_commit]


def _number_of(heads: NDArray[Any], commits: Ints) -> Ints:
    """Return for each record in which place of `commits` its transaction is; -1 for none."""
    keys = heads["txn"][commits]
    by_key = np.argsort(keys)
    if not len(keys):
        return np.full(len(heads), -1)
    found = np.minimum(np.searchsorted(keys, heads["txn"], sorter=by_key), len(keys) - 1)
    return np.where(keys[by_key[found]] == heads["txn"], by_key[found], -1)


def _versions(rows: NDArray[Any], catalog: Catalog) -> Ints:
    """Return the number in the catalogue of each row's version of a table; -1 where it has no such table."""
    numbers = {id(table): n for n, table in enumerate(catalog.tables)}
    ids, of = np.unique(rows["table"], return_inverse=True)
    found = np.full(len(rows), -1)
    for n, both in enumerate(ids.tolist()):
        # Two numbers of two bytes that were read as one of four.
        low, high = both & 0xFFFF, both >> 16
        id_ = (low, high) if catalog.form.endian == "<" else (high, low)
        for place, version in enumerate(catalog.by_id.get(id_, ())):
            lfs, lsn = version.since
            is_since = (rows["lfs"] > lfs) | ((rows["lfs"] == lfs) & (rows["lsn"] >= lsn))
            found[(of == n) & (is_since | (place == 0))] = numbers[id(version)]
    return found
