"""DbWatcher messages of transactions that are large, or that a topic does not take; and the files that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.apply.apply_errors import VALUE_TOO_LONG
from penstock.change import TableName
from penstock.errors import MalformedInputError, OperatorError
from penstock.formats.dbwatcher.message import Command, Message
from penstock.formats.dbwatcher.reader import read_message
from penstock.formats.dbwatcher.transactions import WriterSettings
from penstock.formats.debezium.source_block import STREAMING, ChangePlace
from penstock.formats.debezium.writer import OutgoingRecord, UnpublishableError
from penstock.logical import LogicalType
from penstock.position import Scn
from penstock.schema import Column, Dictionary, TableSchema
from penstock.sinks.dbwatcher import encoder, keys
from penstock.sinks.dbwatcher.encoder import MessageEncoder, MessageSettings
from penstock.sinks.dbwatcher.folder import MessageFolder
from penstock.sinks.dbwatcher.keys import copy_id
from penstock.sinks.events.encoding import CopyPlace, takes_all
from penstock.sinks.events.publisher import begin_run, make_position
from penstock.sinks.events.put_aside import OnBadValue, PutAside
from penstock.sinks.events.state import PublishedState
from penstock.sinks.events.task import EventTask
from penstock.storage import LocalStorage
from tests.contracts.outputs import Given, messages_in, slice_of_batch
from tests.hand_made import T, as_batch, insert, truncate, update

NAME = TableName("public", "t")
TABLE = TableSchema(
    NAME, (Column.of("id", LogicalType.parse("integer(32)")), Column.of("at", LogicalType.parse("timestamp")))
)
AT = "2024-01-02T03:04:05.000000"


_WRITER = ("most_rows", "most_chars", "most_transactions", "sends_unchanged", "sends_truncate")


def encoder_of(copied: int = 0, **settings: Any) -> MessageEncoder:
    writer = {name: settings.pop(name) for name in _WRITER if name in settings}
    made = MessageSettings("t", WriterSettings(**writer), **settings)
    return MessageEncoder(made, Dictionary([TABLE]), {NAME: Scn(copied)} if copied else {})


def read(records: Sequence[OutgoingRecord]) -> list[Message]:
    return [
        read_message(record.value or b"", {name: value.decode() for name, value in record.headers})
        for record in records
    ]


def outline(messages: Sequence[Message]) -> list[tuple[int, bool, str]]:
    return [(len(m.rows), m.keeps_transaction_open, m.properties["_NUM_OF_TRANSACTIONS"]) for m in messages]


def test_a_transaction_that_is_streamed_is_closed_by_its_last_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_ROWS_OF_LARGE", 3)
    changed = [insert("t", id=n, at=AT) for n in range(7)]
    # What makes no row of a message stands at the end: that must not be what closes the transaction.
    unchanged = [update("t", {"id": n, "at": AT}, {"id": n, "at": AT}) for n in range(7)]

    records = list(encoder_of(sends_unchanged=False).of_changes([as_batch([T(8, *changed, *unchanged)])], takes_all))

    messages = read(records)
    assert outline(messages) == [(3, True, "0"), (3, True, "0"), (1, False, "1")]
    assert [row.columns["id"] for message in messages for row in message.rows] == list("0123456")
    assert messages[0].rows[0].columns["at"] == "2024-01-02 03:04:05"


def test_a_transaction_that_is_streamed_counts_once_however_many_messages_it_has(tmp_path: Path) -> None:
    folder = MessageFolder(LocalStorage(tmp_path), "shop")
    make_position(folder, "shop")
    began = begin_run(folder, "shop")
    batch = as_batch([T(8, *(insert("t", id=n, at=AT) for n in range(7)))])
    part = replace(slice_of_batch(Scn(0), batch), is_large=True)

    task = EventTask(folder, began.published_state.epoch, encoder_of(most_rows=3))
    done = task.publish(part, Given(batch), began.token)

    state, inserted = done.published_state, (NAME, "insert")
    assert (state.position, state.transactions, state.changes, state.records) == (8, 1, 7, 3)
    assert (done.tables.changes, done.tables.transactions) == ({inserted: 7}, {inserted: 1})
    messages = [message for body in messages_in(tmp_path) if (message := read_message(body)).rows]
    assert [len(message.rows) for message in messages] == [3, 3, 1]
    assert [message.head.attributes["_MESSAGE_SEQ"] for message in messages] == ["1", "2", "3"]


def collected(*transactions: T, refusal: Any = takes_all, **writer: Any) -> list[Message]:
    batches = [as_batch(list(transactions))]
    found = list(encoder_of(**writer).of_transactions(batches, refusal, OnBadValue.STOP))
    # What is counted is what the source has committed, whatever message it is in.
    assert sum(told.changes > 0 for told in found) == len(transactions)
    assert all(sum(told.by_table.values()) == told.changes for told in found)
    return read([record for told in found for record in told.records])


def idents(messages: Sequence[Message]) -> list[list[str]]:
    """The positions whose rows are in each message, one for each row; the ident is that of the first."""
    for message in messages:
        if message.rows:
            assert message.head.ident == message.rows[0].attributes["transaction"]
            assert message.properties["replKey"] == message.rows[-1].attributes["replKey"]
    return [[row.attributes["transaction"] for row in message.rows] for message in messages]


def test_transactions_are_collected_up_to_the_limit_in_their_order() -> None:
    seven = [T(n, insert("t", id=n)) for n in range(11, 18)]

    messages = collected(*seven, most_transactions=3)

    names = idents(messages)
    assert [len(one) for one in names] == [3, 3, 1]
    assert len({name for one in names for name in one}) == 7
    assert [row.columns["id"] for message in messages for row in message.rows] == [str(n) for n in range(11, 18)]
    assert outline(messages) == [(3, False, "3"), (3, False, "3"), (1, False, "1")]


@pytest.mark.parametrize(
    ("limits", "rows"),
    [
        ({"most_rows": 3}, [4, 2]),
        ({"most_chars": 100}, [2, 2, 2]),
        ({"refusal": lambda record: "is too large" if len(record.value) > 1_100 else None}, [3, 3]),
    ],
)
def test_a_message_of_several_transactions_ends_at_its_other_limits(limits: dict[str, Any], rows: list[int]) -> None:
    assert [len(m.rows) for m in collected(*SIX, most_transactions=50, **limits)] == rows


SIX = [T(n, insert("t", id=n)) for n in range(11, 17)]


def test_what_has_several_messages_or_is_about_a_table_is_never_collected() -> None:
    several = T(13, *(insert("t", id=n) for n in range(50, 55)))
    told = [T(11, insert("t", id=1)), T(12, insert("t", id=2)), several, T(14, truncate("t")), T(15, insert("t", id=3))]

    messages = collected(*told, most_transactions=50, most_rows=2, sends_truncate=True)

    assert outline(messages) == [(2, False, "2"), (3, True, "0"), (2, False, "1"), (0, False, "1"), (1, False, "1")]
    assert messages[3].command is Command.TRUNCATE


def test_keys_grow_over_transactions_and_in_each_begin_anew() -> None:
    batch = as_batch([T(8, insert("t", id=1), insert("t", id=2)), T(9, insert("t", id=3))])

    found = list(encoder_of().of_transactions([batch], takes_all, OnBadValue.STOP))

    found_keys = [int(row.attributes["replKey"]) for told in found for m in read(told.records) for row in m.rows]
    assert found_keys == [(8 << 26) + 1, (8 << 26) + 2, (9 << 26) + 1]


def test_no_two_tables_have_the_same_name_of_a_copy() -> None:
    tables = TableName("x", "a.b"), TableName("x.a", "b")
    assert len({copy_id(7, table, number) for table in tables for number in (0, 1)}) == 4
    assert copy_id(7, TableName("public", "t")) == "copy.7.public.t"


def test_more_changes_than_there_are_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_CHANGES", 2)
    batch = as_batch([T(8, *(insert("t", id=n) for n in range(3)))])

    with pytest.raises(OperatorError, match="more than 2 changes"):
        list(encoder_of().of_changes([batch], takes_all))


def test_what_the_copy_of_a_table_holds_is_not_told_again() -> None:
    batch = as_batch([T(8, insert("t", id=1)), T(9, insert("t", id=2))])

    found = list(encoder_of(copied=8).of_transactions([batch], takes_all, OnBadValue.STOP))

    assert [(told.changes, len(told.records)) for told in found] == [(0, 0), (1, 1)]


def test_a_change_without_a_definition_of_its_table_is_refused() -> None:
    with pytest.raises(MalformedInputError, match="a table version that the dictionary does not hold"):
        list(encoder_of().of_transactions([as_batch([T(8, insert("u", id=1))])], takes_all, OnBadValue.STOP))


@pytest.mark.parametrize(
    ("on_bad_value", "told", "aside"),
    [(OnBadValue.PUT_ASIDE_TRANSACTION, [], (1, 2, 3)), (OnBadValue.PUT_ASIDE_CHANGE, ["1", "3"], (2,))],
)
def test_a_value_that_is_none_of_its_type_is_put_aside(
    on_bad_value: OnBadValue, told: list[str], aside: tuple[int, ...]
) -> None:
    table = TableSchema(NAME, (TABLE.columns[0], Column.of("b", LogicalType.parse("binary"))))
    batch = as_batch([T(8, insert("t", id=1, b="AA=="), insert("t", id=2, b="secret!"), insert("t", id=3))])
    made = MessageEncoder(MessageSettings("t"), Dictionary([table]))

    (found,) = made.of_transactions([batch], takes_all, on_bad_value)

    assert [row.columns["id"] for message in read(found.records) for row in message.rows] == told
    assert found.aside is not None
    assert (found.aside.numbers, found.changes) == (aside, 3)
    assert "secret" not in found.aside.error_message
    with pytest.raises(UnpublishableError, match="column 'b'"):
        list(made.of_transactions([batch], takes_all, OnBadValue.STOP))


def limit(most: int) -> Any:
    return lambda record: "is too large" if len(record.value) > most else None


@pytest.mark.parametrize("streamed", [False, True])
def test_a_transaction_is_cut_until_a_topic_takes_each_message(streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_ROWS_OF_LARGE", 8)
    batch = as_batch([T(8, *(insert("t", id=n, at=AT if n != 12 else "y" * 800) for n in range(20)))])
    made, most = encoder_of(), 1_300

    def sent(most: int) -> list[Message]:
        if streamed:
            return read(list(made.of_changes([batch], limit(most))))
        return read([r for told in made.of_transactions([batch], limit(most), OnBadValue.STOP) for r in told.records])

    messages = sent(most)

    assert [row.columns["id"] for message in messages for row in message.rows] == [str(n) for n in range(20)]
    assert [m.keeps_transaction_open for m in messages] == [True] * (len(messages) - 1) + [False]
    assert [m.properties["_NUM_OF_TRANSACTIONS"] for m in messages] == ["0"] * (len(messages) - 1) + ["1"]
    assert len({message.head.ident for message in messages}) == 1
    with pytest.raises(UnpublishableError, match="is too large"):
        sent(900)


def test_rows_of_a_copy_that_a_topic_does_not_take_together_are_counted_on() -> None:
    rows = pa.record_batch({"id": [str(n) for n in range(9)], "at": [AT] * 8 + ["x" * 9_000]})
    place = CopyPlace(ChangePlace("", 5, 0, 5, 0, STREAMING, {}), 0, lambda: "")
    aside: list[PutAside] = []

    def copied(before: int) -> list[Message]:
        placed = place._replace(before=before)
        made = encoder_of(content_rows=5).of_rows(TABLE, [rows], placed, refusal=limit(1_400), aside=aside)
        return read(list(made))

    first, second = copied(0), copied(4)

    counters = [int(message.head.attributes["_createCounter"]) for message in first]
    assert counters == list(range(len(first)))
    assert [row.columns["id"] for message in first for row in message.rows] == list("01234567")
    assert [int(message.head.attributes["_createCounter"]) for message in second] == list(range(4, 3 + len(first)))
    assert [(entry.op.value, entry.error_number) for entry in aside] == [("snapshot", VALUE_TOO_LONG)] * 2
    again = [
        encoder_of().again(entry.numbered(number), [(1, next(iter(entry.transaction.changes)))], takes_all)
        for number, entry in enumerate(aside, 7)
    ]
    retried = [message for records in again for message in read(records)]
    # A receiver tells transactions apart by their names.
    assert [message.head.ident for message in retried] == ["copy.5.public.t.7", "copy.5.public.t.8"]
    assert {message.rows[0].attributes["replKey"] for message in retried} == {first[1].head.attributes["replKey"]}


@pytest.mark.parametrize("mode", [OnBadValue.PUT_ASIDE_CHANGE, OnBadValue.PUT_ASIDE_TRANSACTION])
def test_a_change_that_is_retried_is_not_taken_for_the_transaction_whose_rest_was_published(mode: OnBadValue) -> None:
    transaction = as_batch([T(8, insert("t", id=1), truncate("t"), insert("t", id=2))])
    (told,) = encoder_of().of_transactions([transaction], takes_all, mode)
    assert told.aside is not None
    changes = list(zip(told.aside.numbers, told.aside.transaction.changes, strict=True))

    records = encoder_of(sends_truncate=True).again(told.aside.numbered(7), changes, takes_all)

    published = {m.head.ident for m in read(told.records)}
    (again,) = {m.head.attributes.get("transaction", m.head.ident) for m in read(records)}
    assert again == (f"{told.aside.txn_id}.7" if published else told.aside.txn_id)
    assert again not in published


def test_a_position_that_holds_anything_is_read_back_from_a_file(tmp_path: Path) -> None:
    folder = MessageFolder(LocalStorage(tmp_path), "shop")
    source = "-->--<!-- penstock.shop.position [] --> </sql>\n<?xml &amp; é"
    make_position(folder, source)
    with folder.open().transaction() as transaction:
        transaction.send(encoder_of().numbered([OutgoingRecord("t", None, MESSAGE, (("replKey", b"7"),), 0)], 41))

    number, state = folder.last()

    assert (number, state.source) == (2, source)
    empty, told = (read_message((tmp_path / f"{n:020}.xml").read_bytes()) for n in (1, 2))
    assert (empty.head.ident, len(empty.rows), empty.head.attributes) == ("penstock.shop.position", 0, {})
    assert told.head.attributes == {"replKey": "7", "_MESSAGE_SEQ": "42"}


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_file_that_was_cut_short_is_not_taken_for_a_position(cut: int, tmp_path: Path) -> None:
    folder = MessageFolder(LocalStorage(tmp_path), "shop")
    make_position(folder, "shop")
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-cut])

    with pytest.raises(MalformedInputError, match="does not end with the position of this pipeline"):
        folder.published_state()
    assert MessageFolder(LocalStorage(tmp_path / "none"), "shop").published_state() == PublishedState()


MESSAGE = (
    b"<?xml version='1.0' encoding='UTF-8' ?>\n <sql>\n   <desc>\n     <command>REPLICATION</command>\n"
    b"     <ident>1</ident>\n   </desc>\n   <row num='0'>  <col name=\"a\"><![CDATA[   </desc>\n]]></col>\n"
    b"     <attr name='action'>INSERT</attr>\n   </row>\n </sql>"
)
