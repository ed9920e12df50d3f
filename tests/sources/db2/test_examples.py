"""The sheet's worked examples, byte for byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.sources.db2_log.catalog import Catalog, read_catalog
from penstock.sources.db2_log.changes import RowChangeDecoder
from penstock.sources.db2_log.framing import read_records
from penstock.sources.db2_log.single_rows import RowDecoder
from penstock.sources.db2_log.transactions import Gatherer, RowResolver

EXAMPLES = Path(__file__).with_name("examples")

C3 = "".join(f"c3#{n:03}|" for n in range(26))
C4 = "".join(f"C4:{n:03};" for n in range(24))

T1 = {
    "schema": "S",
    "table": "T1",
    "tablespace_id": 3,
    "table_id": 22,
    "columns": [
        {"name": "C1", "type": "INTEGER"},
        {"name": "C2", "type": "CHARACTER", "length": 30},
        {"name": "C3", "type": "CLOB", "inline_length": 164},
        {"name": "C4", "type": "CLOB", "inline_length": 164},
    ],
}


def example(name: str, sha256: str) -> bytes:
    content = bytes.fromhex((EXAMPLES / f"{name}.hex").read_text())
    assert hashlib.sha256(content).hexdigest() == sha256
    return content


INSERTED = example("16-1", "4563143d706fd05724b645b3aa26d97bcfcc892c5af7d1b7cde03a8e3023c0c6")
ROLLED_BACK = example("16-2", "3ee7343c75c0bd4f6441cf3e2359e8adf820df30a1c6e230359fd7d2d99c4735")
APPENDED = example("16-3", "ec33e14fb21b439cbd58c731a7691368a9c07ce3e8615adada31797108ced8e2")


def catalog_of(*tables: dict[str, Any], **settings: Any) -> Catalog:
    said = [json.dumps({"id": "SAMPLE", **settings}), *map(json.dumps, tables or (T1,))]
    return read_catalog("\n".join(said), where="catalog.json")


def decode(*buffers: bytes, catalog: Catalog | None = None) -> list[tuple[str, int, list[dict[str, Any]]]]:
    """Return each transaction, with its time and its changes."""
    catalog = catalog or catalog_of()
    gatherer, resolver, decoder = Gatherer(catalog), RowResolver(catalog), RowChangeDecoder(catalog)
    records = (r for n, b in enumerate(buffers, 1) for r in read_records(b, catalog.form, f"{n}.db2log"))
    found = []
    for committed in gatherer.gather(records):
        changes = []
        for seq, row in enumerate(resolver.resolve(committed)):
            one = decoder.decode(row, seq)
            shown = {"op": one.change.op.value, "before": one.change.before, "after": one.change.after}
            changes.append(shown | ({"append": one.append} if one.append else {}))
        found.append((committed.outcome.tid.hex(), committed.committed_at_s or 0, changes))
    return found


def test_an_insert_with_two_lobs() -> None:
    after = {"C1": "1", "C2": "ROW ONE", "C3": C3, "C4": C4}

    assert decode(INSERTED) == [("000000004f31", 1767225600, [{"op": "insert", "before": None, "after": after}])]


def test_an_insert_that_is_rolled_back_leaves_nothing() -> None:
    assert decode(ROLLED_BACK) == []


def test_an_insert_that_is_taken_back_before_a_commit_leaves_no_change() -> None:
    # The last record of the example becomes the commit of the first one, with its own identifiers.
    abort = ROLLED_BACK[-106:]
    commit = bytearray(abort[:56] + bytes.fromhex("3a000000 8400") + abort[62:96] + INSERTED[-18:])

    assert decode(ROLLED_BACK[:-106] + commit) == [("000000004f32", 1767225600, [])]


def test_an_update_that_appends_to_a_lob() -> None:
    change = {"op": "update", "before": {"C1": "1", "C2": "ROW ONE"}, "after": {"C2": "ROW ONE V2"}}
    append = {"append": {"C3": "<<appended by concat operator, 40 bytes>"}}

    assert decode(APPENDED) == [("000000004f33", 1767225661, [change | append])]


ROWS = {
    "inline LOB, as published": (
        [
            {"name": "EMPNO", "type": "CHAR", "length": 6, "nulls": "N"},
            {"name": "RESUME_FORMAT", "type": "VARCHAR", "length": 10, "nulls": "N"},
            {"name": "RESUME", "type": "CLOB", "inline_length": 64},
        ],
        "00003a00 01000f00 303030303330 0f000500 14001e00 00 6173636969 69000000"
        "5468697320697320616e6f74686572206e657720726573756d65",
        {"EMPNO": "000030", "RESUME_FORMAT": "ascii", "RESUME": "This is another new resume"},
    ),
    "inline and null LOB": (
        T1["columns"],
        "00004500 01002e00 03000000 00 524f57205448524545202020202020202020202020202020202020202020 00 2e000f00 00"
        "00000000 01 69000000 696e6c696e652074657874",
        {"C1": "3", "C2": "ROW THREE", "C3": "inline text", "C4": None},
    ),
    "value compression": (
        [
            {"name": "ID", "type": "INTEGER", "nulls": "N"},
            {"name": "NOTE", "type": "VARCHAR", "length": 20},
            {"name": "QTY", "type": "INTEGER", "nulls": "N"},
            {"name": "NAME", "type": "VARCHAR", "length": 20, "nulls": "N"},
        ],
        "00001d00 02000400 0a00 0e80 0f80 1000 1500 2a000000 01 80 616c706861",
        {"ID": "42", "NOTE": None, "QTY": "0", "NAME": "alpha"},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_image(name: str) -> None:
    columns, hexed, row = ROWS[name]
    catalog = catalog_of(T1 | {"columns": columns})

    assert RowDecoder(catalog.tables[0], catalog).decode(memoryview(bytes.fromhex(hexed))) == row


VALUES = [
    ("SMALLINT", 0, 0, "feff", "-2"),
    ("INTEGER", 0, 0, "87d61200", "1234567"),
    ("BIGINT", 0, 0, "ffffffffffffffff", "-1"),
    ("REAL", 0, 0, "0000c03f", "1.5"),
    ("DOUBLE", 0, 0, "9a9999999999b9bf", "-0.1"),
    ("DECIMAL", 5, 2, "12345d", "-123.45"),
    ("DECIMAL", 4, 0, "01234c", "1234"),
    ("DATE", 4, 0, "19960403", "1996-04-03"),
    ("TIME", 3, 0, "133200", "13:32:00.000000"),
    ("TIME", 3, 0, "240000", "24:00:00.000000"),
    ("TIMESTAMP", 10, 6, "20260131133200123456", "2026-01-31T13:32:00.123456"),
    ("BOOLEAN", 1, 0, "01", "true"),
    ("BINARY", 2, 0, "0001", "AAE="),
]


@pytest.mark.parametrize(("type_", "length", "scale", "hexed", "text"), VALUES)
def test_a_value_of_each_type(type_: str, length: int, scale: int, hexed: str, text: str) -> None:
    column = {"name": "V", "type": type_, "length": length, "scale": scale, "nulls": "N"}
    catalog, data = catalog_of(T1 | {"columns": [column]}), bytes.fromhex(hexed)
    image = bytes([0, 0, 8 + len(data), 0, 1, 0, len(data), 0]) + data

    assert RowDecoder(catalog.tables[0], catalog).decode(memoryview(image)) == {"V": text}


def test_changes_are_shown_to_a_person_and_to_a_program_and_records_in_hexadecimal(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"tables": [T1]}))
    (tmp_path / "b").write_bytes(APPENDED)
    command = ["decode", "db2-log", "--catalog", str(tmp_path / "c.json"), str(tmp_path / "b")]

    person = CliRunner().invoke(app, command)
    changes = CliRunner().invoke(app, [*command, "--json"])
    records = CliRunner().invoke(app, [*command, "--json", "--show", "records", "--hex"])

    assert person.stdout.splitlines()[1:] == [
        "  1 update S.T1",
        "      C2: 'ROW ONE' => 'ROW ONE V2'",
        "      C3: appended '<<appended by concat operator, 40 bytes>'",
    ]
    (line,) = map(json.loads, changes.stdout.splitlines())
    assert (line["op"], line["after"]) == ("update", {"C2": "ROW ONE V2"})
    assert line["append"] == {"C3": "<<appended by concat operator, 40 bytes>"}
    assert "".join(json.loads(text)["hex"] for text in records.stdout.splitlines()) == APPENDED.hex()
