"""Rows that are read in bulk are those that are read one by one, whatever a buffer holds."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import change as c
from penstock.errors import MalformedInputError, OperatorError
from penstock.sources.db2_log.buffers import FilePart
from penstock.sources.db2_log.bulk_columns import ColumnDecoder
from penstock.sources.db2_log.catalog import Catalog
from penstock.sources.db2_log.framing import read_records
from penstock.sources.db2_log.plain import find_plain
from penstock.sources.db2_log.reading import LogReading
from penstock.sources.db2_log.single_rows import RowDecoder
from penstock.sources.db2_log.transactions import Gatherer
from tests.sources.db2.encoder import OUT, AbsentPart, Log, Varying, image, inline
from tests.sources.db2.test_examples import APPENDED, INSERTED, ROLLED_BACK, catalog_of
from tests.sources.db2.test_round_trip import STEPS, TABLE, History

EVERY = {
    "schema": "S",
    "table": "T",
    "tablespace_id": 3,
    "table_id": 22,
    "columns": [
        {"name": "ID", "type": "BIGINT", "key_seq": 1},
        {"name": "SMALL", "type": "SMALLINT"},
        {"name": "FLAG", "type": "BOOLEAN"},
        {"name": "RATIO", "type": "DOUBLE"},
        {"name": "LESS", "type": "REAL"},
        {"name": "PRICE", "type": "DECIMAL", "length": 7, "scale": 2},
        {"name": "HUGE", "type": "DECIMAL", "length": 31, "scale": 0},
        {"name": "CODE", "type": "CHARACTER", "length": 4},
        {"name": "BITS", "type": "CHARACTER", "length": 3, "code_page": 0},
        {"name": "DAY", "type": "DATE"},
        {"name": "AT", "type": "TIME"},
        {"name": "SEEN", "type": "TIMESTAMP", "scale": 6},
        {"name": "EXACT", "type": "TIMESTAMP", "scale": 9},
        {"name": "ROUGH", "type": "TIMESTAMP", "scale": 0},
        {"name": "NAME", "type": "VARCHAR", "length": 20},
        {"name": "RAW", "type": "VARBINARY", "length": 20},
        {"name": "TEXT", "type": "CLOB", "inline_length": 64},
    ],
}

NUMBERS = st.integers(-(2**15), 2**15 - 1)


def packed(digits: str, sign: str) -> bytes:
    return bytes.fromhex(digits + sign)


@st.composite
def images(draw: st.DrawFn, order: str = "<") -> bytes:
    """A row of `EVERY`; each column may be NULL."""

    def maybe(part: bytes) -> bytes | AbsentPart:
        return AbsentPart(len(part)) if draw(st.booleans()) and draw(st.booleans()) else part

    def digits(count: int) -> str:
        return draw(st.text("0123456789", min_size=count, max_size=count))

    text = draw(st.text('ab"\\é\n ', max_size=8)).encode()
    date, time = draw(st.sampled_from(["19991231", "00010101"])), draw(st.sampled_from(["235959", "240000", "000000"]))
    parts: list[bytes | Varying | AbsentPart] = [
        maybe(struct.pack(order + "q", draw(st.integers(-(2**63), 2**63 - 1)))),
        maybe(struct.pack(order + "h", draw(NUMBERS))),
        maybe(struct.pack("B", draw(st.integers(0, 2)))),
        maybe(struct.pack(order + "d", draw(st.floats()))),
        maybe(struct.pack(order + "f", draw(st.floats(width=32)))),
        maybe(packed(digits(7), draw(st.sampled_from("cdfb")))),
        maybe(packed(digits(31), draw(st.sampled_from("cdfb")))),
        maybe(draw(st.sampled_from([b"ab  ", b"    ", "é b".encode(), b'"\\ \t']))),
        maybe(draw(st.binary(min_size=3, max_size=3))),
        maybe(bytes.fromhex(date)),
        maybe(bytes.fromhex(time)),
        maybe(bytes.fromhex(date + time + digits(6))),
        maybe(bytes.fromhex(date + time + digits(10))),
        maybe(bytes.fromhex(date + time)),
        Varying(draw(st.none() | st.just(text))),
        Varying(draw(st.none() | st.binary(max_size=5))),
        draw(st.sampled_from([Varying(None), OUT, Varying(b""), Varying(b"\x80"), inline(text), Varying(b"\x69\x00")])),
    ]
    return image(parts, order)


def a_row(number: int) -> bytes:
    """A row of `EVERY` without NULL."""
    digits = f"{number:06}"
    return image(
        [
            struct.pack("<q", number),
            struct.pack("<h", -number),
            b"\x01",
            struct.pack("<d", number / 7),
            struct.pack("<f", number / 3),
            packed("0" + digits, "cd"[number % 2]),
            packed(digits.rjust(31, "1"), "c"),
            b"ab  ",
            b"\x00\xff" + bytes([number % 256]),
            bytes.fromhex("19991231"),
            bytes.fromhex("235959"),
            bytes.fromhex("19991231235959" + digits),
            bytes.fromhex("19991231235959" + digits + "1234"),
            bytes.fromhex("19991231235959"),
            Varying(b"name" * (number % 4)),
            Varying(b"\x01\x02"),
            inline(b"text"),
        ]
    )


def read(buffers: Iterable[bytes], catalog: Catalog, *, in_bulk: bool) -> list[dict[str, Any]] | str:
    """Return the changes of buffers, or where it is that they are refused."""
    gatherer, reading = Gatherer(catalog), LogReading(catalog, None)
    found: list[dict[str, Any]] = []
    try:
        for number, buffer in enumerate(buffers, 1):
            name = f"{number:09}.db2log"
            plain = None
            if in_bulk:
                plain = find_plain(buffer, catalog, start=0, end=None, is_open=gatherer.open.keys())
            among = None if plain is None else plain.others.tolist()
            records = read_records(buffer, catalog.form, name, among=among)
            for batch in reading.read(FilePart(number, name, buffer, plain, records, gatherer)):
                assert batch.schema == c.ARROW_SCHEMA
                batch.validate(full=True)
                found += batch.to_pylist()
    except (MalformedInputError, OperatorError) as exc:
        return str(exc.where)
    return found


def assert_same(buffers: list[bytes], catalog: Catalog) -> list[dict[str, Any]] | str:
    in_bulk, one_by_one = (read(buffers, catalog, in_bulk=told) for told in (True, False))
    # Of two records that are wrong either may be met first.
    assert in_bulk == one_by_one or (isinstance(in_bulk, str) and isinstance(one_by_one, str))
    return in_bulk


@settings(max_examples=120, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from("iud"), st.integers(0, 2), images(), images()), min_size=1, max_size=12),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=2),
)
def test_rows_of_every_type_are_those_that_are_read_one_by_one(
    steps: list[tuple[str, int, bytes, bytes]], flips: list[tuple[float, int]]
) -> None:
    log = Log()
    for rid, (what, tid, old, new) in enumerate(steps):
        match what:
            case "i":
                log.insert(tid, rid, new)
            case "u":
                log.update(tid, rid, old, new)
            case _:
                log.delete(tid, rid, old)
    for tid in range(3):
        log.commit(tid)
    buffer = bytearray(b"".join(log.records))
    for at, mask in flips:
        buffer[int(at * len(buffer))] ^= mask

    assert_same([bytes(buffer)], catalog_of(EVERY))


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@settings(max_examples=100, deadline=None)
@given(steps=st.lists(STEPS, max_size=60), cuts=st.sets(st.integers(1, 80), max_size=3))
def test_histories_are_those_that_are_read_one_by_one(order: str, steps: list[Any], cuts: set[int]) -> None:
    history = History(order)
    for one in steps:
        history.step(*one)
    buffers = history.log.buffers(cut for cut in cuts if cut < len(history.log.records))

    found = assert_same(buffers, catalog_of(TABLE, byte_order="little" if order == "<" else "big"))

    assert len(found) == sum(len(changes) for _, _, changes in history.expected)


@pytest.mark.parametrize("buffer", [INSERTED, ROLLED_BACK, APPENDED], ids=["inserted", "rolled back", "appended"])
def test_examples_are_those_that_are_read_one_by_one(buffer: bytes) -> None:
    assert_same([buffer], catalog_of(on_unreplicable="leave_column_out"))


def test_no_row_of_a_known_type_is_odd() -> None:
    starts, data = [], b""
    for number in range(20):
        starts.append(len(data))
        data += a_row(number)
    catalog = catalog_of(EVERY)

    found = ColumnDecoder(RowDecoder(catalog.tables[0], catalog)).decode(
        np.frombuffer(data, np.uint8), np.array(starts, np.int64)
    )

    assert found is not None
    assert not found.is_odd.any()


def test_a_plain_history_is_read_in_bulk_to_its_last_row() -> None:
    history = History("<")
    for n in range(50):
        history.step(n % 3, "insert", n, "name", "short" if n % 2 else None)
    for slot, what in ((1, "commit"), (0, "abort"), (2, "commit")):
        history.step(slot, what, 0, None, None)
    catalog, buffer = catalog_of(TABLE), b"".join(history.log.records)

    plain = find_plain(buffer, catalog, start=0, end=None, is_open=())

    assert plain is not None
    assert (len(plain.others), len(plain.commits), len(plain.rows)) == (0, 2, 33)


def test_a_transaction_that_is_open_already_is_not_plain() -> None:
    log = Log()
    log.insert(1, 1, image([struct.pack("<i", 1), Varying(b"x"), Varying(None)]))
    log.commit(1)

    plain = find_plain(b"".join(log.records), catalog_of(TABLE), start=0, end=None, is_open=[(0, bytes(5) + b"\x01")])

    assert plain is not None
    assert (len(plain.others), len(plain.commits)) == (2, 0)


@pytest.mark.parametrize(("limit", "most"), [("_BATCH_ROWS", 4), ("_PLAIN_BYTES", 150), ("_PLAIN_BYTES", 1)])
def test_batches_of_both_kinds_are_in_the_order_of_commits(
    limit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"penstock.sources.db2_log.reading.{limit}", most)
    history = History("<")
    for n in range(40):
        # Every third one has LOB data, so it is not plain.
        history.step(0, "insert", n, "name", "long" * 100 if n % 3 == 0 else "short")
        if n % 2:
            history.step(0, "commit", 0, None, None)

    found = assert_same([b"".join(history.log.records)], catalog_of(TABLE))

    assert isinstance(found, list)
    assert [row[c.AFTER].split('"')[3] for row in found] == [str(n) for n in range(40)]
