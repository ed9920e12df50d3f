"""Transactions as messages and back, with the messages that the table of test cases in the specification names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.change import Change, Image, Op, TableName
from penstock.errors import MalformedInputError, OperatorError
from penstock.external_values import ExternalValue
from penstock.formats.dbwatcher.changes import changes_of
from penstock.formats.dbwatcher.message import Message
from penstock.formats.dbwatcher.reader import read_message
from penstock.formats.dbwatcher.transactions import KeyedTransaction, TransactionWriter, WriterSettings
from penstock.formats.dbwatcher.values import UnreadableValueError, reader_of, writer_of
from penstock.formats.dbwatcher.writer import write_message
from penstock.logical import LogicalType
from penstock.schema import Column, TableSchema

T = TableSchema(
    TableName("public", "t"),
    tuple(
        Column.of(name, LogicalType.parse(type_))
        for name, type_ in {
            "id": "integer(32)",
            "name": "string(40)",
            "amount": "decimal(12,3)",
            "ts": "timestamp",
            "flag": "boolean",
            "photo": "binary",
        }.items()
    ),
)

VALUES = [
    ("boolean", "true", "true"),
    ("integer(32)", "-7", "-7"),
    ("decimal(12,3)", "44.500", "44.500"),
    ("decimal", "NaN", "NaN"),
    ("float(64)", "1e+20", "1e+20"),
    ("string(5,padded)", "ab", "ab   "),
    ("binary", "AP8Q", b"\x00\xff\x10"),
    ("binary", "", b""),
    ("date", "2024-01-02", "2024-01-02"),
    ("date", "0044-03-15 BC", "0044-03-15 BC"),
    ("date", "10000-01-01", "10000-01-01"),
    ("date", "infinity", "infinity"),
    ("time", "03:04:05.678000", "03:04:05.678"),
    ("time", "00:00:00.000000", "00:00:00"),
    ("time", "24:00:00.000000", "24:00:00"),
    ("time(9)", "03:04:05.123456789", "03:04:05.123456789"),
    ("timetz", "03:04:05.600000+00:00", "03:04:05.6+00"),
    ("timetz", "03:04:05.000000-05:30", "03:04:05-05:30"),
    ("timetz", "03:04:05.000000+05:30:15", "03:04:05+05:30:15"),
    ("timestamp", "2024-01-02T03:04:05.678000", "2024-01-02 03:04:05.678"),
    ("timestamp", "2024-01-02T03:04:00.000000", "2024-01-02 03:04:00"),
    ("timestamp", "0044-03-15T00:00:00.100000 BC", "0044-03-15 00:00:00.1 BC"),
    ("timestamp", "0001-12-31T23:59:59.000000 BC", "0001-12-31 23:59:59 BC"),
    ("timestamp", "294276-12-31T23:59:59.999999", "294276-12-31 23:59:59.999999"),
    ("timestamp", "-infinity", "-infinity"),
    ("timestamptz", "2024-01-02T03:04:05.678000+00:00", "2024-01-02 03:04:05.678+00"),
    ("timestamptz", "0044-03-15T00:00:00.000000+00:00 BC", "0044-03-15 00:00:00+00 BC"),
    ("timestamptz", "infinity", "infinity"),
    ("interval", "P1M-3DT4H5M6.7S", "P1M-3DT4H5M6.7S"),
    ("interval", "PT0S", "PT0S"),
    ("uuid", "8f14e45f-ceea-467f-a0e6-9b6f5e9d6f1c", "8f14e45f-ceea-467f-a0e6-9b6f5e9d6f1c"),
    ("bits(4)", "0101", "0101"),
    ("array(boolean)", "{t,NULL}", "{t,NULL}"),
    ("other('inet')", "10.0.0.1/32", "10.0.0.1"),
    ("other('inet')", "::1/128", "::1"),
    ("other('inet')", "10.0.0.0/8", "10.0.0.0/8"),
    ("other('cidr')", "10.0.0.1/32", "10.0.0.1/32"),
]


@pytest.mark.parametrize(("type_", "canonical", "value"), VALUES)
def test_a_value_is_what_the_types_output_function_writes_and_comes_back(
    type_: str, canonical: str, value: str | bytes
) -> None:
    logical = LogicalType.parse(type_)
    writer = writer_of(logical)

    assert (canonical if writer is None else writer(canonical)) == value
    assert reader_of(logical)(value) == canonical


READ = [
    ("boolean", "t", "true"),
    ("boolean", "0", "false"),
    ("decimal", ".5", "0.5"),
    ("decimal", "-.50", "-0.50"),
    ("integer(32)", "+7", "7"),
    ("integer(32)", "7.0", "7"),
    ("string", b"tab\rhere", "tab\rhere"),
    ("binary", "\\x00FF10", "AP8Q"),
    ("date", "2024-01-02 00:00:00", "2024-01-02"),
    ("timestamp", "2024-01-02T03:04:05", "2024-01-02T03:04:05.000000"),
    ("timestamptz", "2024-01-02 03:04:05", "2024-01-02T03:04:05.000000+00:00"),
    ("timestamptz", "2024-01-02 03:04:05.5+05:30", "2024-01-01T21:34:05.500000+00:00"),
    ("interval", "1 year 2 mons -3 days -04:05:06.70", "P1Y2M-3DT-4H-5M-6.7S"),
    ("interval", "00:00:00", "PT0S"),
]


@pytest.mark.parametrize(("type_", "value", "canonical"), READ)
def test_what_other_watchers_write_is_read(type_: str, value: str | bytes, canonical: str) -> None:
    assert reader_of(LogicalType.parse(type_))(value) == canonical


KINDS = sorted({type_ for type_, *_ in [*VALUES, *READ]})
ODD = st.text("0123456789-+:.TZ PYMDHSBCEinfty\\x٣\ud800 ", max_size=24) | st.from_regex(
    r"\A[-+]?[0-9]{1,5000}([-.:T ][0-9]{1,9}){0,6}( ?BC|Z|\+[0-9:]{1,8}| days?)?\Z"
)


@given(st.sampled_from(KINDS), ODD | st.binary(max_size=9))
def test_any_value_is_read_or_refused_and_what_is_read_is_written_alike(type_: str, value: str | bytes) -> None:
    logical = LogicalType.parse(type_)
    try:
        canonical = reader_of(logical)(value)
    except (UnreadableValueError, MalformedInputError):
        return
    writer = writer_of(logical)

    assert reader_of(logical)(canonical if writer is None else writer(canonical)) == canonical


def insert(**after: str | None) -> Change:
    return Change(0, Op.INSERT, T.name, 1, None, after)


def update(before: Image, **after: str | None) -> Change:
    return Change(0, Op.UPDATE, T.name, 1, before, after)


def delete(**before: str | None) -> Change:
    return Change(0, Op.DELETE, T.name, 1, before, None)


def messages(*transactions: Sequence[Change], settings: WriterSettings = WriterSettings()) -> list[Message]:
    """Messages of transactions, written and read."""
    keyed, key = [], 1
    for number, changes in enumerate(transactions, 1):
        keyed.append(KeyedTransaction(f"X{number}", changes, range(key, key + len(changes))))
        key += len(changes)
    writer = TransactionWriter(lambda *_: T, settings)
    return [read_message(write_message(m), m.properties) for m in writer.messages(keyed)]


def changes(message: Message) -> list[tuple[Op, Image | None, Image | None]]:
    found = changes_of(message, {T.name: T})
    return [(change.op, change.before, change.after) for part in found.parts for change in part.changes]


TEXTS = st.text(max_size=9) | st.text("]>[<!&;|'\"\r\n\t \x00\x7f\x85\ufffe\ud800a", max_size=9)
ROWS = st.fixed_dictionaries({"id": st.just("1"), "name": TEXTS, "photo": st.sampled_from(["", "AP8Q"])})


@given(ROWS, ROWS)
def test_what_is_written_reads_back_the_same(old: dict[str, str], new: dict[str, str]) -> None:
    changed = {name: value for name, value in new.items() if old[name] != value}
    did = [insert(**old), update(old, **changed), update(old, name=None), delete(**new)]

    (message,) = messages(did)

    assert changes(message) == [(one.op, one.before, one.after) for one in did]
    assert changes_of(message, {T.name: T}).parts[0].repl_keys == [1, 2, 3, 4]


def test_an_insert_leaves_nulls_out_unless_all_are_null() -> None:
    (message,) = messages([insert(id="2", name=None), insert(id=None, name=None)])

    assert [dict(row.columns) for row in message.rows] == [{"id": "2"}, {"id": None, "name": None}]


def test_a_transaction_of_more_rows_than_fit_is_several_messages() -> None:
    found = messages([insert(id=str(n)) for n in range(5)], settings=WriterSettings(most_rows=2))

    assert [len(message.rows) for message in found] == [3, 2]
    assert [message.properties["_NUM_OF_TRANSACTIONS"] for message in found] == ["0", "1"]
    assert [message.keeps_transaction_open for message in found] == [True, False]
    assert [message.properties["replKey"] for message in found] == ["3", "5"]


def test_a_transaction_that_is_large_is_several_messages_by_itself() -> None:
    did = [update({"name": "x" * 1000}, name="y" * 1000)] * 200

    found = messages(did, settings=WriterSettings(most_chars=100_000))

    assert [len(message.rows) for message in found] == [64, 64, 64, 8]
    assert [message.properties["_NUM_OF_TRANSACTIONS"] for message in found] == ["0", "0", "0", "1"]
    assert len(messages(did)) == 1


def test_transactions_that_are_collected_go_into_one_message() -> None:
    found = messages(*[[insert(id=str(n))] for n in range(7)], settings=WriterSettings(most_transactions=3))

    assert [message.properties["_NUM_OF_TRANSACTIONS"] for message in found] == ["3", "3", "1"]
    assert [part.txn_id for part in changes_of(found[0], {T.name: T}).parts] == ["X1", "X2", "X3"]
    assert [message.properties["_MESSAGE_SEQ"] for message in found] == ["1", "2", "3"]


def test_ddl_in_the_middle_has_a_message_of_its_own_and_nothing_is_committed_before_the_end() -> None:
    altered = Change(1, Op.DDL, T.name, 1, {"was": "{}", "is": "{}"}, None)

    found = messages([insert(id="1"), altered, insert(id="2")])

    assert [message.command.value for message in found] == ["REPLICATION", "ALTER", "REPLICATION"]
    assert [message.keeps_transaction_open for message in found] == [True, True, False]
    event = changes_of(found[1], {}).event
    assert event is not None
    assert (event.action.value, event.table, event.repl_key, event.txn_id) == ("ALTER", T.name, 2, "X1")


def test_what_cannot_be_told_is_refused_and_never_left_out() -> None:
    for change, why in (
        (Change(0, Op.GAP, T.name, 1, None, None), "were not captured"),
        (Change(0, Op.TRUNCATE, T.name, 1, None, None), "was truncated"),
        (insert(photo=ExternalValue.at("7", 10, is_binary=True)), "not in its image|is not Base64"),
        (insert(name=ExternalValue.at("7", 10, is_binary=False)), "not in its image"),
        (insert(photo="secret!"), "'photo' of table public.t is not Base64"),
        (update({}, name="secret"), "has no old image"),
        (Change(0, Op.DELETE, T.name, 1, None, None), "has no old image"),
    ):
        with pytest.raises(OperatorError, match=why) as raised:
            messages([change])
        assert "secret" not in str(raised.value)


HEAD = "<sql><desc><command>REPLICATION</command><ident>x</ident></desc>"
NAMED = "<attr name='tableName'>t</attr><attr name='schema'>public</attr><attr name='replKey'>7</attr>"

REFUSED = {
    "a row has no action": f"{NAMED}",
    "action 'MERGE' of a row is not known": f"{NAMED}<attr name='action'>MERGE</attr>",
    "action 'DROP' of a row is not known": f"{NAMED}<attr name='action'>DROP</attr>",
    "no tableName": "<attr name='action'>INSERT</attr>",
    "has no oldContent": f"{NAMED}<attr name='action'>UPDATE</attr>",
    "replKey is not a whole number": f"{NAMED.replace('>7<', '>x<')}<attr name='action'>INSERT</attr>",
    "column 'id' is not a whole number": f"<col name='id'>7.5</col>{NAMED}<attr name='action'>INSERT</attr>",
    "column 'amount' is not a number": f"<col name='amount'>secret</col>{NAMED}<attr name='action'>INSERT</attr>",
    "column 'flag' is no boolean": f"<col name='flag'>secret</col>{NAMED}<attr name='action'>INSERT</attr>",
    "column 'photo' is neither Base64": f"<col name='photo'>secret</col>{NAMED}<attr name='action'>INSERT</attr>",
    "column 'ts' is no timestamp": f"<col name='ts'>secret</col>{NAMED}<attr name='action'>INSERT</attr>",
    "column 'ts' is no date and": f"<col name='ts'>2023-02-29 00:00:00</col>{NAMED}<attr name='action'>INSERT</attr>",
    "not UTF-8": f"<col name='name' encoding='base64'>/w==</col>{NAMED}<attr name='action'>INSERT</attr>",
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_row_that_is_no_change_is_refused_with_its_place_and_without_its_value(why: str) -> None:
    message = read_message(f"{HEAD}<row/><row>{REFUSED[why]}</row></sql>".encode().replace(b"<row/>", b""))

    with pytest.raises(MalformedInputError, match=why) as raised:
        changes_of(message, {T.name: T})

    assert "row 0" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_column_that_no_definition_has_is_read_as_it_is() -> None:
    message = read_message(
        f"{HEAD}<row><col name='ts'>2024-01-02 03:04:05</col><col name='photo' encoding='base64'>/w==</col>"
        f"<col name='name' encoding='base64'>YQ1i</col>{NAMED}<attr name='action'>INSERT</attr></row></sql>".encode()
    )

    assert changes_of(message, {}).parts[0].changes[0] == Change(
        0, Op.INSERT, T.name, 0, None, {"ts": "2024-01-02 03:04:05", "photo": "/w==", "name": "a\rb"}
    )


def test_attributes_of_the_message_count_for_rows_without_them_and_a_blank_is_no_schema() -> None:
    document = (
        "<sql><desc><command>REPLICATION</command><ident>x</ident><attr name='action'>INSERT</attr>"
        "<attr name='schema'> </attr><attr name='tableName'>t</attr></desc>"
        "<row><col name='id'>1</col></row><row><attr name='action'>delete</attr><col name='id'>1</col></row></sql>"
    )

    (part,) = changes_of(read_message(document.encode()), {T.name: T}, default_schema="public", first_seq=5).parts

    assert [(change.change_seq, change.op) for change in part.changes] == [(5, Op.INSERT), (6, Op.DELETE)]
    assert {change.table for change in part.changes} == {T.name}
    assert (part.txn_id, part.repl_keys) == ("x", [None, None])


def test_names_are_kept_as_they_are() -> None:
    odd = TableName(" s\t", ' T "<&|> ')
    change = Change(0, Op.INSERT, odd, 1, None, {" a\n'": "1"})
    writer = TransactionWriter(lambda *_: None)
    (message,) = writer.messages([KeyedTransaction("1.2.3", [change], [7])])

    (part,) = changes_of(read_message(write_message(message), message.properties), {}).parts

    assert (part.txn_id, part.changes[0].table, part.changes[0].after) == ("1.2.3", odd, {" a\n'": "1"})


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "dbwatcher.md").read_text(encoding="utf-8")

    exec(page.partition("```python\n")[2].partition("```")[0], {})


def test_the_message_of_the_page_is_read() -> None:
    page = (Path(__file__).parents[3] / "docs" / "dbwatcher.md").read_text(encoding="utf-8")
    document = page.partition("```xml\n")[2].partition("```")[0].replace("…", "").strip()

    (part,) = changes_of(read_message(document.encode()), {T.name: T}).parts

    assert part.changes == [Change(0, Op.UPDATE, T.name, 1, {"id": "1", "name": "old"}, {"name": "first"})]
