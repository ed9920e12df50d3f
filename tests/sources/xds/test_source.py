"""A folder of XDS documents as a source: its order, what documents say, and what cannot be read."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.formats.xds.writer import document_of
from penstock.history import Consumer, History, HistoryError
from penstock.logical import BINARY, STRING, LogicalType, integer
from penstock.logical import Kind as Kinds
from penstock.position import START, Anchor, Limit, Scn
from penstock.schema import Column, ForeignKey, TableSchema, Unique
from penstock.sources.xds.documents import Documents
from penstock.sources.xds.source import XdsConnector, XdsDocuments
from penstock.storage import LocalStorage
from penstock.stream import Slice

USR, PHONE = TableName("idm", "usr"), TableName("idm", "usr_phone")

TABLES = {
    USR: TableSchema(
        USR,
        (
            Column.of("idu", integer(32), is_nullable=False),
            Column.of("fname", STRING),
            Column.of("photo", BINARY),
            Column.of("seen", LogicalType(Kinds.TIMESTAMP, precision=6)),
        ),
        Unique("usr_pkey", ("idu",), ("idu",)),
    ),
    PHONE: TableSchema(
        PHONE,
        (Column.of("idu", integer(32)), Column.of("phoneno", STRING)),
        None,
        foreign_keys=(ForeignKey("usr_phone_fkey", PHONE, ("idu",), USR, ("idu",)),),
    ),
}

ADD = '<add class-name="usr"><association>idu={0},table=usr,schema=idm</association>{1}</add>'
MODIFY = '<modify class-name="usr"><association>idu={0},table=usr,schema=idm</association>{1}</modify>'
DELETE = '<delete class-name="usr"><association>idu={0},table=usr,schema=idm</association></delete>'


def values(step: str, *texts: str, type_: str = "string") -> str:
    return f"<{step}>" + "".join(f'<value type="{type_}">{text}</value>' for text in texts) + f"</{step}>"


def added(name: str, *texts: str, type_: str = "string") -> str:
    return values("add-attr", *texts, type_=type_).replace("<add-attr>", f'<add-attr attr-name="{name}">')


def modified(name: str, *steps: str) -> str:
    return f'<modify-attr attr-name="{name}">{"".join(steps)}</modify-attr>'


class Folder:
    """A folder of documents."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, number: int, *elements: str, name: str | None = None) -> None:
        (self.path / (name or f"{number:019d}.xml")).write_bytes(document_of(elements))

    def side(self) -> XdsConnector:
        return XdsConnector(LocalStorage(self.path), ["idm.*"], lambda _: TABLES)

    def slices(self, limit: Limit = Limit(), after: int = START) -> list[Slice]:
        source, found = self.side().open_source(), []
        while (part := source.next_slice(Scn(after), limit)) is not None:
            found.append(part)
            after = part.end
        return found

    def read(self, parts: Sequence[Slice] | None = None) -> list[tuple[int, str, str, Any, Any]]:
        """Each change of slices that have travelled: position, operation, table and images."""
        side = self.side()
        reader = side.access.reader("xds", side.open_source().tables(), follows=[USR, PHONE])
        carried = pickle.loads(pickle.dumps(reader))
        parts = self.slices() if parts is None else parts
        rows = [
            row
            for part in parts
            for batch in carried.read(pickle.loads(pickle.dumps(part)))
            for row in batch.to_pylist()
        ]

        def image(text: str | None) -> Any:
            return None if text is None else json.loads(text)

        return [
            (row["commit_scn"], row["op"], row["table_name"], image(row["before"]), image(row["after"])) for row in rows
        ]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.rule("E-18")
def test_a_document_is_a_transaction_at_the_position_that_names_it(folder: Folder) -> None:
    folder.write(12, MODIFY.format(1, modified("fname", values("remove-value", "Jack"), values("add-value", "John"))))
    photo = added("photo", "qq o=\n", type_="octet") + added("seen", "1709281800", type_="time")
    folder.write(9, ADD.format(1, added("fname", "Jack") + photo), DELETE.format(2), name="9.xml")

    assert folder.read() == [
        (
            9,
            "insert",
            "usr",
            None,
            {"idu": "1", "fname": "Jack", "photo": "qqo=", "seen": "2024-03-01T08:30:00.000000"},
        ),
        (9, "delete", "usr", {"idu": "2"}, None),
        (12, "update", "usr", {"idu": "1", "fname": "Jack"}, {"fname": "John"}),
    ]
    (part,) = folder.slices()
    assert (part.commit_scns.tolist(), part.changes.tolist(), part.end) == ([9, 12], [2, 1], 12)


@pytest.mark.rule("E-18")
def test_a_document_is_as_old_as_its_file_whoever_reads_it_and_a_time_is_a_point_between_two(folder: Folder) -> None:
    for number, hour in ((1, 8), (2, 9), (3, 10)):
        folder.write(number, DELETE.format(number))
        os.utime(folder.path / f"{number:019d}.xml", (0, datetime(2024, 3, 1, hour, tzinfo=UTC).timestamp()))

    for after, expected in ((0, [8, 9, 10]), (1, [9, 10])):
        (part,) = folder.slices(after=after)
        hours = [datetime.fromtimestamp(at_us / 1_000_000, UTC).hour for at_us in part.committed_at_us.tolist()]
        assert hours == expected
    assert folder.side().position_of("2024-03-01T09:30:00Z", option="--until") == 2


@pytest.mark.rule("E-13")
def test_all_values_of_a_child_table_are_the_rows_that_documents_have_told_of(folder: Folder) -> None:
    folder.write(1, ADD.format(1, added("usr_phone.phoneno", "1", "2")))
    replaced = modified("usr_phone.phoneno", "<remove-all-values/>", values("add-value", "3"))
    folder.write(2, MODIFY.format(1, replaced), MODIFY.format(1, replaced.replace(">3<", ">4<")))
    folder.write(3, DELETE.format(1))

    def phones(rows: Sequence[tuple[int, str, str, Any, Any]]) -> list[tuple[int, str, str]]:
        return [(at, op, (after or before)["phoneno"]) for at, op, table, before, after in rows if table == "usr_phone"]

    expected = [
        (1, "insert", "1"),
        (1, "insert", "2"),
        (2, "delete", "1"),
        (2, "delete", "2"),
        (2, "insert", "3"),
        (2, "delete", "3"),
        (2, "insert", "4"),
        (3, "delete", "4"),
    ]
    assert phones(folder.read()) == expected
    # A run that goes on behind a document knows what it has told of, and a slice is the same when asked for again.
    assert phones(folder.read(folder.slices(after=2))) == expected[-1:]
    source = folder.side().open_source()
    first = [source.next_slice(Scn(after), Limit(max_transactions=1)) for after in (0, 1, 2, 1, 0)]
    assert phones(folder.read([part for part in first if part is not None])) == [
        *expected,
        *[one for one in expected if one[0] == 2],
        *[one for one in expected if one[0] == 1],
    ]


@pytest.mark.rule("E-13")
def test_a_run_forgets_how_rows_of_child_tables_came_to_be_and_may_go_back_all_the_same(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sources.xds.source._MOST_DOCUMENTS", 1)
    folder.write(1, ADD.format(1, added("usr_phone.phoneno", "1")))
    for number in range(2, 9):
        replaced = modified("usr_phone.phoneno", "<remove-all-values/>", values("add-value", str(number)))
        folder.write(number, MODIFY.format(1, replaced))
    documents = XdsDocuments(LocalStorage(folder.path), ["idm.*"], lambda _: TABLES)

    def removed(after: int) -> str:
        """The one value that the document behind a position removes."""
        part = documents.next_slice(Scn(after))
        assert part is not None
        (removed,) = [row for batch in documents.read(part) for row in batch.to_pylist() if row["op"] == "delete"]
        return str(json.loads(removed["before"])["phoneno"])

    assert [removed(after) for after in range(1, 8)] == list("1234567")
    (kept,) = documents._transactions._rows.values()
    assert len(kept) == 2
    assert [removed(after) for after in (6, 2, 7, 1)] == list("6271")


def test_the_backlog_is_counted_a_slice_at_a_time(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sources.xds.source._MOST_DOCUMENTS", 1)
    for number in range(1, 6):
        folder.write(number, DELETE.format(number))
    held, most, slice_behind = list[weakref.ref[Slice]](), 0, XdsDocuments.next_slice

    def next_slice(documents: XdsDocuments, after: Scn) -> Slice | None:
        nonlocal most
        most = max(most, sum(one() is not None for one in held))
        part = slice_behind(documents, after)
        held.extend([] if part is None else [weakref.ref(part)])
        return part

    monkeypatch.setattr(XdsDocuments, "next_slice", next_slice)
    found = folder.side().open_source().backlog(Scn(1))

    assert (found.changes, found.size_bytes) == (4, 16)
    assert found.oldest_at is not None
    assert most == 1


@pytest.mark.rule("E-13", "E-19")
def test_a_document_that_is_put_aside_has_told_of_no_rows_of_child_tables(folder: Folder) -> None:
    replaced = modified("usr_phone.phoneno", "<remove-all-values/>", values("add-value", "2"))
    folder.write(1, ADD.format(1, added("usr_phone.phoneno", "1")))
    folder.write(2, MODIFY.format(1, replaced), DELETE.format("x"))
    folder.write(3, DELETE.format(1))

    told = [row[3]["phoneno"] for row in folder.read() if row[:3] == (3, "delete", "usr_phone")]

    assert told == ["1"]


NOT_READ = [
    ("<nds", "document 2.xml: the document is not XML"),
    ('<!DOCTYPE nds [<!ENTITY x "y">]><nds/>', "document 2.xml: the document declares a document type"),
    (
        '<?xml version="1.0" encoding="Shift_JIS"?><nds><input/></nds>',
        "document 2.xml: the document's XML declaration names an encoding that cannot be read",
    ),
    ("<nds><input><rename/></input></nds>", "document 2.xml: event 1 is <rename>, not add, modify or delete"),
    (
        document_of(["<query/>", "<sync/>", DELETE.format("x")]).decode(),
        "document 2.xml, event 3: is no integer",
    ),
    ("<nds><input><status/><move/></input></nds>", "document 2.xml: event 2 is <move>, not add, modify or delete"),
    (
        document_of([DELETE.format("x")]).decode(),
        "document 2.xml, event 1: is no integer",
    ),
    (
        document_of([DELETE.format(1).replace("table=usr", "table=nobody")]).decode(),
        "document 2.xml, event 1: table idm.nobody is not among those that are followed",
    ),
    (
        document_of([DELETE.format(1).replace(",schema=idm", "")]).decode(),
        "document 2.xml, event 1: an association is not of the form",
    ),
    (
        document_of([ADD.format(1, added("photo", "no base64!", type_="octet"))]).decode(),
        "document 2.xml, event 1: is not padded Base64",
    ),
    (
        document_of([ADD.format(1, added("shoe", "1"))]).decode(),
        "document 2.xml, event 1: an attribute is not a column",
    ),
]


@pytest.mark.rule("E-19")
@pytest.mark.parametrize(("document", "why"), NOT_READ)
def test_a_document_that_cannot_be_read_is_put_aside_whole_and_its_neighbours_are_read(
    folder: Folder, document: str, why: str
) -> None:
    folder.write(1, DELETE.format(1))
    (folder.path / "2.xml").write_text(document)
    folder.write(3, DELETE.format(3))

    rows = folder.read()

    assert [(at, op) for at, op, *_ in rows] == [(1, "delete"), (2, "gap"), (3, "delete")]
    assert rows[1][3]["reason"].startswith(why)
    assert "no base64!" not in rows[1][3]["reason"]


def test_elements_that_ask_or_answer_are_skipped_with_a_warning_for_each_kind(folder: Folder, caplog: Any) -> None:
    folder.write(1, "<query/>", DELETE.format(1), "<status level='success'/>", "<query/>")
    folder.write(2, "<sync/>", "<query/>")
    folder.write(3, DELETE.format(3))

    assert [(at, op) for at, op, *_ in folder.read()] == [(1, "delete"), (3, "delete")]
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [text.partition(":")[0] for text in warned] == [
        "document 0000000000000000001.xml holds <query>, which changes no row",
        "document 0000000000000000001.xml holds <status>, which changes no row",
        "document 0000000000000000002.xml holds <sync>, which changes no row",
    ]


@pytest.mark.rule("E-19")
def test_an_event_beside_one_that_cannot_be_read_waits_with_it(folder: Folder) -> None:
    folder.write(1, DELETE.format(1), DELETE.format("x"))

    assert [(at, op) for at, op, *_ in folder.read()] == [(1, "delete"), (1, "gap")]


def test_documents_that_say_nothing_of_the_tables_move_the_position_alone(folder: Folder) -> None:
    other = DELETE.format(1).replace("schema=idm", "schema=hr")
    folder.write(1)
    folder.write(2, other)
    assert [(len(part), part.end) for part in folder.slices()] == [(0, 2)]
    side = folder.side()
    assert side.open_source().tick() == 2
    assert side.open_source().backlog(START).changes == 0

    folder.write(3, DELETE.format(1), other)
    folder.write(4, other)

    assert [(part.commit_scns.tolist(), part.end) for part in folder.slices()] == [([3], 4)]
    assert [row[:2] for row in folder.read()] == [(3, "delete")]


@pytest.mark.rule("E-18")
def test_an_association_names_a_table_in_any_case_and_a_table_that_is_left_out_is_told_once(
    folder: Folder, caplog: Any
) -> None:
    folder.write(1, DELETE.format(1).replace("table=usr,schema=idm", "table=USR,schema=IDM"))
    folder.write(2, DELETE.format(2).replace("table=usr,schema=idm", "table=nobody,schema=IDM"))
    other = DELETE.format(1).replace("schema=idm", "schema=hr")
    folder.write(3, other, other)
    folder.write(4, other)

    with caplog.at_level(logging.INFO, "penstock"):
        folder.slices()

    assert [row[:3] for row in folder.read()] == [(1, "delete", "usr"), (2, "gap", "usr")]
    told = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    assert told == [
        f"what documents say of table hr.usr is left out, which is not among those that are followed ({folder.path})"
    ]


def test_names_that_are_no_numbers_are_told_once_and_not_read(folder: Folder, caplog: Any) -> None:
    folder.write(1, DELETE.format(1))
    for name in ("orders.xml", "-1.xml", "0.xml", "99999999999999999999.xml", "2.xml.part", "notes.txt"):
        folder.write(0, DELETE.format(9), name=name)
    source = folder.side().open_source()

    with caplog.at_level(logging.WARNING, "penstock"):
        assert source.next_slice(START, Limit()) is not None
        assert source.next_slice(Scn(1), Limit()) is None

    told = [record.getMessage().split(" is not read")[0] for record in caplog.records]
    assert sorted(told) == [f"file {name}" for name in ("-1.xml", "0.xml", "99999999999999999999.xml", "orders.xml")]


def test_two_documents_of_one_number_are_refused(folder: Folder) -> None:
    folder.write(1, DELETE.format(1))
    folder.write(1, DELETE.format(2), name="1.xml")

    with pytest.raises(OperatorError, match=r"documents 0+1\.xml and 1\.xml have the same number"):
        folder.slices()


def test_a_list_that_lacks_a_document_which_came_while_it_was_made_leaves_none_out(folder: Folder) -> None:
    class Filling(LocalStorage):
        lists = iter([["6.xml"], ["5.xml", "6.xml", "7.xml"]])

        def names(self, _: str) -> list[str]:
            return next(self.lists)

    assert Documents(Filling(folder.path)).numbered() == [(5, "5.xml"), (6, "6.xml")]


@pytest.mark.rule("E-18")
def test_a_document_that_comes_below_others_is_refused_and_not_left_out(folder: Folder) -> None:
    folder.write(5, DELETE.format(1))
    source = folder.side().open_source()
    assert source.next_slice(START, Limit()) is not None
    folder.write(4, DELETE.format(2), name="4.xml")

    with pytest.raises(
        OperatorError, match=r"document 4\.xml came behind 0+5\.xml.*also not after a restart.*above all"
    ):
        source.next_slice(Scn(5), Limit())


@pytest.mark.rule("E-18")
def test_a_folder_that_is_emptied_and_begun_anew_during_a_run_is_refused(folder: Folder) -> None:
    for number in (1, 2):
        folder.write(number, DELETE.format(number))
    source = folder.side().open_source()
    part = source.next_slice(START, Limit())
    assert part is not None
    for path in folder.path.iterdir():
        path.unlink()

    gone = r"document 0+2\.xml, the last one, is not there any more.*penstock resync --all"
    with pytest.raises(OperatorError, match=gone):
        source.wait(threading.Event(), 0.1)
    folder.write(1, DELETE.format(3))
    with pytest.raises(OperatorError, match=gone):
        source.next_slice(part.end, Limit())


def test_a_pipeline_keeps_its_folder_and_documents_that_are_applied_may_be_taken_away_but_for_the_last(
    folder: Folder, tmp_path: Path
) -> None:
    for number in (1, 2):
        folder.write(number, DELETE.format(number))
    source = folder.side().open_source()
    joined = source.join(History(Consumer("c", "idm"), None, START, None, None, is_new=True))
    part = source.next_slice(joined.position, Limit())
    assert part is not None
    went_on = History(Consumer("c", "idm"), joined.origin, part.end, part.anchor, part.anchor, is_new=False)
    (folder.path / f"{1:019d}.xml").unlink()
    assert folder.side().open_source().join(went_on).position == 2

    (folder.path / f"{2:019d}.xml").unlink()
    with pytest.raises(OperatorError, match="older state"):
        folder.side().open_source().join(went_on)
    elsewhere = Folder(tmp_path / "other")
    elsewhere.path.mkdir()
    elsewhere.write(2, DELETE.format(2))
    with pytest.raises(OperatorError, match="not the one that the target was filled from"):
        elsewhere.side().open_source().join(went_on)


def after_three_documents(folder: Folder) -> History:
    """What the next run begins with; the documents are 10, 20 and 30."""
    for number in (10, 20, 30):
        folder.write(number, DELETE.format(number))
    source = folder.side().open_source()
    joined = source.join(History(Consumer("c", "idm"), None, START, None, None, is_new=True))
    part = source.next_slice(joined.position, Limit())
    assert part is not None
    return History(Consumer("c", "idm"), joined.origin, part.end, part.anchor, part.anchor, is_new=False)


@pytest.mark.rule("E-18")
@pytest.mark.parametrize("kept", [50, 2], ids=["known by number", "known by how many there are"])
def test_a_document_that_came_below_others_is_refused_by_a_later_run(
    folder: Folder, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sources.xds.documents._KEPT_NUMBERS", kept)
    went_on = after_three_documents(folder)
    folder.write(15, DELETE.format(4))

    with pytest.raises(HistoryError, match=r"came since 30 was read, whose number is higher.*above all others"):
        folder.side().open_source().join(went_on)

    (folder.path / f"{15:019d}.xml").rename(folder.path / f"{40:019d}.xml")
    assert folder.side().open_source().join(went_on).position == 30


@pytest.mark.rule("E-18")
@pytest.mark.parametrize("number", [10, 20, 30])
def test_a_document_that_was_altered_after_it_was_read_is_refused_by_a_later_run(folder: Folder, number: int) -> None:
    went_on = after_three_documents(folder)
    folder.write(number, DELETE.format(31))

    with pytest.raises(HistoryError, match=rf"document 0+{number}\.xml was read, and holds something else now"):
        folder.side().open_source().join(went_on)


def test_what_an_earlier_version_has_kept_of_documents_is_gone_on_from(folder: Folder) -> None:
    """It has no digests of any but the last."""
    went_on = after_three_documents(folder)
    assert went_on.anchor is not None
    before = Anchor(went_on.anchor.scn, re.sub(r"\.[0-9a-f]+", "", went_on.anchor.mark))
    assert before != went_on.anchor
    folder.write(20, DELETE.format(31))

    assert folder.side().open_source().join(replace(went_on, anchor=before, newest=before)).position == 30


def test_a_position_of_an_earlier_version_proves_nothing_and_is_gone_on_from(folder: Folder) -> None:
    went_on = after_three_documents(folder)
    assert went_on.anchor is not None
    folder.write(15, DELETE.format(4))
    of_old = Anchor(went_on.anchor.scn, went_on.anchor.mark.partition(" ")[0])

    assert folder.side().open_source().join(replace(went_on, anchor=of_old, newest=of_old)).position == 30


def test_tables_that_the_target_lacks_are_asked_for(folder: Folder) -> None:
    side = XdsConnector(LocalStorage(folder.path), ["idm.nobody"], lambda _: {})

    with pytest.raises(OperatorError, match=r"no table of the target matches 'idm\.nobody'.*Make the tables"):
        side.match(["idm.nobody"])
