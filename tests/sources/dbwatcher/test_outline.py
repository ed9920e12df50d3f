"""Messages taken by the forms of their rows say the same as the parser; what no form matches is left to it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.change import Change, Image, Op, TableName
from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.transactions import KeyedTransaction, TransactionWriter
from penstock.formats.dbwatcher.writer import write_message
from penstock.logical import LogicalType
from penstock.position import Scn
from penstock.schema import Column, TableSchema
from penstock.sources.dbwatcher.messages import Place, StoredMessage
from penstock.sources.dbwatcher.outline import Outlines
from penstock.sources.dbwatcher.pieces import ask, changes_in, read
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.tables import TableBook
from tests.formats.dbwatcher.test_altered import PIECES
from tests.sources.dbwatcher.messages import CONTENT, OPEN, cols, message, row

TYPES = {
    "id": "integer(32)",
    "name": "string(40)",
    "code": "string(5,padded)",
    "amount": "decimal(12,3)",
    "ratio": "float(64)",
    "flag": "boolean",
    "day": "date",
    "clock": "time",
    "zoned": "timetz",
    "ts": "timestamp",
    "tstz": "timestamptz",
    "span": "interval",
    "photo": "binary",
}
TABLE = TableSchema(
    TableName("public", "t"),
    tuple(Column.of(name, LogicalType.parse(type_)) for name, type_ in TYPES.items()),
    version=3,
)
# Its rows look like those of t, and have other types.
OTHER = TableSchema(
    TableName("public", "u"), tuple(Column.of(name, LogicalType.parse("string(40)")) for name in TYPES), version=1
)
BOOK = TableBook({TABLE.name: TABLE, OTHER.name: OTHER})
READING = Reading()

FULL: Image = {
    "id": "-12",
    "name": "a ]] > 'b'\n\t\"é\"",
    "code": "ab",
    "amount": "44.500",
    "ratio": "1e-7",
    "flag": "true",
    "day": "2024-01-31",
    "clock": "03:04:05.678000",
    "zoned": "03:04:05.678000+00:00",
    "ts": "2024-01-02T03:04:05.678000",
    "tstz": "2024-12-31T23:59:59.000000+00:00",
    "span": "P1M-3DT4H",
    "photo": "AP8Q",
}
MARKED: Image = {"id": "7", "name": "<a href='x'>&\"]]", "ts": "2024-01-02T03:04:05.678901234", "photo": None}

WRITTEN = [
    write_message(one)
    for one in TransactionWriter(lambda name, _: BOOK.fixed[name]).messages(
        [
            KeyedTransaction(
                "4711",
                [
                    Change(0, Op.INSERT, TABLE.name, 3, None, FULL),
                    Change(1, Op.UPDATE, TABLE.name, 3, {**FULL, **MARKED}, {"name": "x", "photo": ""}),
                    Change(2, Op.DELETE, TABLE.name, 3, MARKED, None),
                    Change(3, Op.UPDATE, OTHER.name, 1, {"id": "x", "flag": "f", "day": "y"}, {"flag": "<"}),
                ],
                range(7, 11),
            ),
            KeyedTransaction("4712", [Change(0, Op.INSERT, TABLE.name, 3, None, {"id": "1"})], [12]),
        ]
    )
]
USUAL_CONTENT = CONTENT.replace("0.1", "4713").format(
    counter=1, rows=f"   <row num='0'>  {cols(id='1', name='a')}\n   </row>\n"
)


def stored(body: bytes, properties: Mapping[str, str] | None = None) -> StoredMessage:
    return StoredMessage(Place(Scn(9), "f", 0, b""), "f", body, properties or {})


def assert_same(outlines: Outlines, one: StoredMessage) -> bool:
    """Make sure that both say the same, or that the parser has to tell; returns whether a form told."""
    told = outlines.ask(one, BOOK), outlines.changes(one, BOOK)
    if told == (None, None):
        return False
    found = read(one, READING)
    assert found is not None
    assert told == ((found.head, ask(found, one, BOOK, READING)), changes_in(one, BOOK, READING)[1])
    return True


@pytest.mark.parametrize("body", WRITTEN)
def test_what_the_writer_writes_is_taken_by_its_form(body: bytes) -> None:
    assert assert_same(Outlines(READING), stored(body))


def test_rows_without_attributes_have_those_of_the_message() -> None:
    body = USUAL_CONTENT.replace("\n   </row>\n\n", "\n   </row>\n").encode()

    assert assert_same(Outlines(READING), stored(body))


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (b">-12<", b">-12x<"),
        (b">true<", b">yes<"),
        (b"2024-01-31<", b"2024-02-30<"),
        (b"2024-01-31<", b"2024-02-29<"),
        (b"2024-01-02 03:04:05.678<", b"2024-06-31 03:04:05.678<"),
        (b">AP8Q<", b">AP8R=<"),
        (b">AP8Q<", b">AP8<"),
        (b"\xc3\xa9", b"\xc2\x85"),
        (b"<col name=\"id\">-12", b"<col name=\"id\">1</col><col name=\"id\">-12"),
        (b"'tableName'>t<", b"'tableName'>other<"),
        (b"'action'>INSERT<", b"'action'>MERGE<"),
        (b"'action'>INSERT<", b"'action'>UPDATE<"),
        (b"'replKey'>7<", b"'replKey'>7a<"),
        (b"</row>\n </sql>", b"</row>\n"),
        (b"</row>\n </sql>", b"</row>\n </sql>\n"),
        (b"<command>REPLICATION", b"<command>STATEMENT"),
        (b"<?xml version='1.0' encoding='UTF-8' ?>", b"<?xml version='1.0' encoding='UTF-8' ?><!DOCTYPE sql>"),
    ],
)  # fmt: skip
def test_anything_else_is_left_to_the_parser(was: bytes, becomes: bytes) -> None:
    assert was in WRITTEN[0]
    one, outlines = stored(WRITTEN[0].replace(was, becomes)), Outlines(READING)

    assert outlines.ask(one, BOOK) is None
    assert outlines.changes(one, BOOK) is None


@pytest.mark.parametrize("properties", [{"_compressionType": "gzip"}, {"_command": "broadcastSql"}, {"DUMP": "1"}])
def test_what_properties_say_otherwise_is_left_to_the_parser(properties: dict[str, str]) -> None:
    assert Outlines(READING).ask(stored(WRITTEN[0], properties), BOOK) is None


def test_a_message_above_the_limit_is_left_to_the_parser() -> None:
    assert Outlines(Reading(most_bytes=len(WRITTEN[0]) - 1)).ask(stored(WRITTEN[0]), BOOK) is None


@given(st.data(), st.integers(1, 3))
@settings(max_examples=400, deadline=None)
def test_an_altered_message_is_taken_alike_or_left_to_the_parser(data: st.DataObject, times: int) -> None:
    body = bytearray(data.draw(st.sampled_from(WRITTEN)))
    for _ in range(times):
        at = data.draw(st.integers(0, len(body)))
        end = min(len(body), at + data.draw(st.sampled_from([0, 1, 1, 2, 5, 40])))
        from_ = data.draw(st.integers(0, len(body)))
        pieces = st.sampled_from([*PIECES, b"1", b"0", b"-", b".", b"true", b"]", bytes(body[from_ : from_ + 30])])
        body[at:end] = data.draw(pieces)

    try:
        assert_same(Outlines(READING), stored(bytes(body)))
    except MalformedInputError as exc:
        raise AssertionError("a form took what the parser refuses") from exc


texts = st.text(st.characters(exclude_categories=()), max_size=8)
images = st.fixed_dictionaries(
    {"id": st.integers().map(str)},
    optional={
        "name": st.none() | texts,
        "code": st.none() | texts,
        "photo": st.none() | st.sampled_from(["", "AA==", "AP8=", "AP8Q"]),
        "flag": st.sampled_from(["true", "false", None]),
        "day": st.dates().map(str),
        "ts": st.datetimes().map(lambda at: at.isoformat(timespec="microseconds")),
        "tstz": st.datetimes().map(lambda at: at.isoformat(timespec="microseconds") + "+00:00"),
        "clock": st.times().map(lambda at: at.isoformat(timespec="microseconds")),
    },
)


@given(images, images)
@settings(deadline=None)
def test_any_values_are_read_alike(old: Image, new: Image) -> None:
    changes = [
        Change(0, Op.INSERT, TABLE.name, 3, None, new),
        Change(1, Op.UPDATE, TABLE.name, 3, old, new),
        Change(2, Op.DELETE, TABLE.name, 3, old, None),
    ]
    writer = TransactionWriter(lambda *_: TABLE)
    (written,) = writer.messages([KeyedTransaction("1", changes, [1, 2, 3])])

    assert_same(Outlines(READING), stored(write_message(written)))


def test_the_order_of_columns_is_learned_also_of_a_table_that_nobody_describes() -> None:
    outlines, book = Outlines(READING), TableBook()
    bodies = [WRITTEN[0], WRITTEN[1]]
    assert outlines.ask(stored(bodies[0]), book) is None
    found = read(stored(bodies[0]), READING)
    assert found is not None

    outlines.learn(found, stored(bodies[0]), book)

    for one in map(stored, bodies):
        told = outlines.ask(one, book)
        found = read(one, READING)
        assert found is not None
        assert told == (found.head, ask(found, one, book, READING))
        assert outlines.changes(one, book) == changes_in(one, book, READING)[1]


def test_a_transaction_that_is_sent_again_in_another_form_is_the_same() -> None:
    unusual = stored(message("4711", row("INSERT", cols(id="1", name="a > b"), 7, "4711"), desc=OPEN).encode())
    found = read(unusual, READING)
    assert found is not None
    (told,) = ask(found, unusual, BOOK, READING).pieces
    insert = Change(0, Op.INSERT, TABLE.name, 3, None, {"id": "1", "name": "a > b"})
    (usual,) = TransactionWriter(lambda *_: TABLE).messages([KeyedTransaction("4711", [insert], [7])])

    taken = Outlines(READING).ask(stored(write_message(usual)), BOOK)

    assert taken is not None
    assert taken[1].pieces[0].said == told.said
