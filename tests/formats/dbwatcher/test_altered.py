"""Messages that were altered at random: both readers agree, and the answer is a message or a `MalformedInputError`."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.changes import changes_of
from penstock.formats.dbwatcher.message import Command, Head, Message, MessageRow
from penstock.formats.dbwatcher.parser import DEFAULT_LIMITS, MessageLimits
from penstock.formats.dbwatcher.reader import read_message, read_parts
from penstock.formats.dbwatcher.usual import read_usual
from penstock.formats.dbwatcher.writer import write_message
from penstock.logical import LogicalType
from penstock.schema import Column, TableSchema

ATTRIBUTES = {"schema": "public", "action": "UPDATE", "replKey": "7", "transaction": "4711", "tableName": "t"}
IMAGE = {"id": "1", "name": "a ]] > b\n\té", "note": "<&]]", "none": None, "photo": b"\x00\xff", "cr": "a\rb", "e": ""}
MESSAGE = Message(
    Head(Command.REPLICATION, "4711", {"_keepTransactionOpen": "true"}),
    [
        MessageRow(IMAGE, ATTRIBUTES, {**IMAGE, "name": "'q' \"r\""}),
        MessageRow({"id": "2"}, {**ATTRIBUTES, "replKey": "8"}, {"id": "1", "none": None}),
        MessageRow({}, {}),
    ],
)
WRITTEN = write_message(MESSAGE)

TABLE = TableSchema(
    TableName("public", "t"),
    tuple(
        Column.of(name, LogicalType.parse(type_))
        for name, type_ in {"id": "integer(32)", "none": "timestamptz", "photo": "binary", "e": "interval"}.items()
    ),
)

PIECES = [
    b"<", b">", b"&", b"'", b'"', b"]]>", b"<![CDATA[", b"&lt;", b"&amp;", b"&#x0D;", b"&#x0;", b"\r", b"\x01", b"\xff",
    b"\xef\xbf\xbf", b"\xed\xa0\x80", b" ", b"\n", b"</col>", b"</attr>", b"</row>", b"   </row>\n", b"   </desc>\n",
    b"<col name='x'>", b'<col name="x">', b'<col name="x" type="null"/>', b"<attr name='replKey'>", b"<!-- x -->",
    b"\n     <attr name='", b"&quot;", b"&gt;", b"'>  ", b"encoding='base64'", b"=",
    b"<?x?>", b"<!DOCTYPE sql>", b"</sql>", b"9",
]  # fmt: skip


def altered(seed: int, times: int) -> bytes:
    """A message with pieces of it taken out, put in, written over or doubled."""
    drawn = random.Random(seed)
    body = bytearray(WRITTEN if seed % 2 else write_message(PLAIN))
    for _ in range(times):
        at = drawn.randrange(len(body) + 1)
        end = min(len(body), at + drawn.choice([0, 1, 1, 2, 5, 40]))
        match drawn.randrange(3):
            case 0:
                body[at:end] = drawn.choice(PIECES)
            case 1:
                body[at:at] = body[at:end]
            case _:
                other = drawn.randrange(len(body) + 1)
                body[at:end] = body[other : other + drawn.choice([1, 3, 30])]
    return bytes(body)


def parsed(body: bytes) -> Message | None:
    """What the parser says, which reads everything."""
    try:
        head, *rows = read_parts([body])
    except MalformedInputError:
        return None
    assert isinstance(head, Head)
    return Message(head, [row for row in rows if isinstance(row, MessageRow)])


PLAIN = Message(
    Head(Command.REPLICATION, "4711"), [MessageRow({"id": "1"}, ATTRIBUTES), MessageRow({}, {"replKey": "7"})]
)
EMPTY = Message(Head(Command.DROP, "4711", {**ATTRIBUTES, "action": "DROP"}))


@pytest.mark.parametrize("message", [MESSAGE, PLAIN, EMPTY])
def test_what_the_writer_writes_is_of_the_usual_form_and_read_by_both_alike(message: Message) -> None:
    found = read_usual(write_message(message))

    assert found is not None
    assert found == parsed(write_message(message))


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (b"UTF-8", b"ISO-8859-1"),
        (b"<desc>", b"<DESC>"),
        (b"<command>", b"<command >"),
        (b"4711</ident>", b"47&#49;1</ident>"),
        (b"<attr name='schema'>", b"<attr  name='schema'>"),
        (b"</sql>", b"</sql>\n"),
        (b"<row num='0'>", b"<row num='0' >"),
        (b"public", b"pub&#108;ic"),
        (b"\xc3\xa9", b"\r\n"),
    ],
)
def test_another_form_is_left_to_the_parser(was: bytes, becomes: bytes) -> None:
    assert was in WRITTEN

    assert read_usual(WRITTEN.replace(was, becomes)) is None


@given(st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=500)
def test_an_altered_message_is_read_by_both_alike_or_refused(seed: int, times: int) -> None:
    body = altered(seed, times)

    slow, quick = parsed(body), read_usual(body)

    assert quick is None or quick == slow
    if slow is None:
        with pytest.raises(MalformedInputError):
            read_message(body)
        return
    assert read_message(body) == slow
    with suppress(MalformedInputError):
        changes_of(slow, {TABLE.name: TABLE})


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedInputError):
        read_message(body)


@pytest.mark.parametrize("at", range(0, len(WRITTEN), 7))
def test_a_message_that_is_cut_short_is_refused(at: int) -> None:
    with pytest.raises(MalformedInputError):
        read_message(WRITTEN[:at])


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_message_that_comes_in_pieces_is_the_same(size: int) -> None:
    pieces = [WRITTEN[at : at + size] for at in range(0, len(WRITTEN), size)]

    assert list(read_parts(pieces)) == [MESSAGE.head, *parsed(WRITTEN).rows]  # type: ignore[union-attr]


class Endless(BytesIO):
    """A file that begins as a message and then has the same piece again and again."""

    def __init__(self, piece: bytes) -> None:
        super().__init__()
        self._next = b"<sql><desc><command>REPLICATION</command><ident>x</ident></desc>" + piece
        self._piece = piece
        self.given = 0

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        assert size > 0
        found = self._next
        self._next = self._piece * max(1, min(size, 1 << 18) // len(self._piece))
        self.given += len(found)
        return found


@pytest.mark.parametrize(
    "piece", [b"<row><col name='a'>x", b"a", b"<x>", b" ", b"<!-- x -->", b"<row><attr name='a'><b>"]
)
def test_a_file_without_end_is_refused_at_the_limit_without_much_memory(piece: bytes) -> None:
    file = Endless(piece)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedInputError):
            read_message(file, limits=MessageLimits(bytes=4_000_000, depth=DEFAULT_LIMITS.depth))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert file.given < 5_000_000
    assert peak < 100_000_000
