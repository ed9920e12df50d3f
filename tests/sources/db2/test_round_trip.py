"""Random histories, written by an encoder that knows nothing of the decoder: what was committed comes back, in order.

And whatever else a buffer may hold: one error that names file and offset, or the changes that a reader may take it for.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, MalformedInputError, OperatorError
from penstock.sources.db2_log.catalog import read_catalog
from tests.sources.db2.encoder import OUT, Log, Varying, image, inline
from tests.sources.db2.test_examples import catalog_of, decode

TABLE = {
    "schema": "S",
    "table": "T",
    "tablespace_id": 3,
    "table_id": 22,
    "columns": [
        {"name": "ID", "type": "INTEGER", "key_seq": 1},
        {"name": "NAME", "type": "VARCHAR", "length": 20},
        {"name": "TEXT", "type": "CLOB", "inline_length": 64},
    ],
}
LONGEST_INLINE = 60

NAMES = st.none() | st.text("abcé ", max_size=9)
TEXTS = st.none() | st.text("xyzß", max_size=40) | st.integers(61, 400).map(lambda n: "long" * n)
STEPS = st.tuples(
    st.integers(0, 3),
    st.sampled_from(["insert", "update", "delete", "undo", "commit", "abort"]),
    st.integers(-(2**31), 2**31 - 1),
    NAMES,
    TEXTS,
)

Row = tuple[int, str | None, str | None]


@dataclass
class Open:
    """A transaction that has no outcome yet: its changes, and the rows that it has, by where they lie."""

    tid: int
    changes: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    undo: tuple[int, int] | None = None


class History:
    """A log that is being written, and what a reader of it has to find."""

    def __init__(self, order: str) -> None:
        self.log = Log(order)
        self.expected: list[tuple[str, int, list[dict[str, Any]]]] = []
        self._open: dict[int, Open] = {}
        self._last = 0

    def step(self, slot: int, what: str, number: int, name: str | None, text: str | None) -> None:
        """Do one thing in one of the transactions that are open side by side."""
        txn = self._open.setdefault(slot, Open(tid=self._number()))
        log = self.log
        match what:
            case "commit" | "abort":
                getattr(log, what)(txn.tid)
                if what == "commit":
                    self.expected.append((f"{txn.tid:012x}", 1_767_225_600, txn.changes))
                del self._open[slot]
            case "undo" if txn.undo is not None:
                rid, lso = txn.undo
                log.undo_insert(txn.tid, rid, lso)
                del txn.changes[-1], txn.rows[rid]
                txn.undo = None
            case "insert":
                rid, row = self._number(), (number, name, text)
                lso = self._insert(txn.tid, rid, row)
                txn.rows[rid] = row
                txn.changes.append({"op": "insert", "before": None, "after": values(row)})
                # LOB data would have to be taken back, too.
                txn.undo = None if is_out(text) else (rid, lso)
            case "update" | "delete" if txn.rows:
                rid, row = next(iter(txn.rows.items()))
                before = {n: v for n, v in values(row).items() if n != "TEXT" or not is_out(row[2])}
                if what == "delete":
                    log.delete(txn.tid, rid, self._image(row))
                    txn.changes.append({"op": "delete", "before": before, "after": None})
                    del txn.rows[rid]
                else:
                    # A LOB out of the row stays as it is: nothing of it is logged.
                    new = (row[0], name, row[2])
                    log.update(txn.tid, rid, self._image(row), self._image(new))
                    after = {} if name == row[1] else {"NAME": name}
                    txn.changes.append({"op": "update", "before": before, "after": after})
                    txn.rows[rid] = new
                txn.undo = None

    def _insert(self, tid: int, rid: int, row: Row) -> int:
        text = row[2]
        if text is not None and is_out(text):
            self.log.start(tid)
            self.log.lob(tid, 2, text.encode(), most=300)
        return self.log.insert(tid, rid, self._image(row))

    def _image(self, row: Row) -> bytes:
        number, name, text = row
        told = Varying(None) if text is None else OUT if is_out(text) else inline(text.encode())
        e = self.log.order
        return image([struct.pack(e + "i", number), Varying(None if name is None else name.encode()), told], e)

    def _number(self) -> int:
        self._last += 1
        return self._last


def is_out(text: str | None) -> bool:
    return text is not None and len(text.encode()) > LONGEST_INLINE


def values(row: Row) -> dict[str, str | None]:
    return {"ID": str(row[0]), "NAME": row[1], "TEXT": row[2]}


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEPS, max_size=60), cuts=st.sets(st.integers(1, 80), max_size=5))
def test_what_was_committed_comes_back_in_the_order_of_commits(order: str, steps: list[Any], cuts: set[int]) -> None:
    history = History(order)
    for one in steps:
        history.step(*one)

    at = [cut for cut in cuts if cut < len(history.log.records)]
    catalog = catalog_of(TABLE, byte_order="little" if order == "<" else "big")
    found = decode(*history.log.buffers(at), catalog=catalog)
    # Of a transaction that came to nothing there may be an empty one, or none.
    assert [one for one in found if one[2]] == [one for one in history.expected if one[2]]


def written() -> list[bytes]:
    """Records with something of everything."""
    history = History("<")
    for what, text in [("insert", "x"), ("insert", "long" * 100), ("update", None), ("delete", None), ("commit", None)]:
        history.step(0, what, 1, "n", text)
    return history.log.records


RECORDS = written()
WRITTEN = b"".join(RECORDS)
ENDS = list(itertools.accumulate(map(len, RECORDS)))


@given(end=st.integers(1, len(WRITTEN) - 1).filter(lambda end: end not in ENDS))
def test_a_buffer_that_is_cut_off_inside_a_record_is_refused(end: int) -> None:
    began = max([0, *(at for at in ENDS if at < end)])

    with pytest.raises(MalformedInputError) as refused:
        decode(WRITTEN[:end], catalog=catalog_of(TABLE))

    assert refused.value.where == f"1.db2log, offset {began}"


FLIPS = st.lists(st.tuples(st.integers(0, len(WRITTEN) - 1), st.integers(1, 255)), min_size=1, max_size=6)


@settings(max_examples=1500)
@given(flips=FLIPS)
def test_bits_that_fell_over_are_refused_in_one_line_or_are_other_values(flips: list[tuple[int, int]]) -> None:
    buffer = bytearray(WRITTEN)
    for at, mask in flips:
        buffer[at] ^= mask
    _try(bytes(buffer))


@settings(max_examples=500)
@given(garbage=st.binary(max_size=400))
def test_garbage_is_refused_in_one_line(garbage: bytes) -> None:
    _try(garbage)


def _try(buffer: bytes) -> None:
    """Decode; whatever is wrong is told with its file and offset."""
    refused = None
    try:
        decode(buffer, catalog=catalog_of(TABLE))
    except (MalformedInputError, OperatorError) as exc:
        refused = exc
    assert refused is None or "1.db2log, offset " in (refused.where or "")


def test_a_catalogue_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        read_catalog("{", where="catalog.json")


def test_a_lob_that_is_too_large_stops_the_source_or_its_column_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sources.db2_log.changes.MOST_LOB_BYTES", 1000)
    history = History("<")
    for text in ("long" * 250, "long" * 251):
        history.step(0, "insert", 1, "n", text)
    history.step(0, "commit", 0, None, None)
    buffer = b"".join(history.log.records)

    with pytest.raises(OperatorError, match=r"column 'TEXT' of S\.T .*: 1004 bytes of it were logged"):
        decode(buffer, catalog=catalog_of(TABLE))
    ((_, _, changes),) = decode(buffer, catalog=catalog_of(TABLE, on_unreplicable="leave_column_out"))
    assert [sorted(change["after"]) for change in changes] == [["ID", "NAME", "TEXT"], ["ID", "NAME"]]
