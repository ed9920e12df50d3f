"""Whole transactions of any values, written as messages into files and read by the source, are what they were."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.change import Change, Op, TableName
from penstock.formats.dbwatcher.protect import base64_of
from penstock.formats.dbwatcher.tables import Creation, create_message
from penstock.formats.dbwatcher.transactions import KeyedTransaction, TransactionWriter, WriterSettings
from penstock.formats.dbwatcher.writer import write_message
from penstock.formats.debezium.writer import OutgoingRecord
from penstock.logical import LogicalType
from penstock.schema import Column, TableSchema
from penstock.sinks.dbwatcher.folder import MessageFolder
from penstock.storage import LocalStorage
from tests.formats.dbwatcher.test_changes import VALUES
from tests.sources.dbwatcher.test_source import Folder, read

NAME = TableName("public", "t")

CANONICAL: Mapping[str, Sequence[str]] = {
    type_: [canonical for one, canonical, _ in VALUES if one == type_] for type_ in dict.fromkeys(v[0] for v in VALUES)
}
"""By type, values as the table of the format has them."""

TEXTS = st.text(max_size=9) | st.text("]>[<!&;|'\"\r\n\t \x00\x01\x7f\x85\ufffe\ufffféa", max_size=9)
BYTES = st.binary(max_size=12).map(base64_of)

TABLE = TableSchema(
    NAME,
    (
        Column.of("id", LogicalType.parse("integer(32)"), is_nullable=False),
        Column.of("any text", LogicalType.parse("string")),
        Column.of('a "<&> name', LogicalType.parse("string")),
        Column.of("bytes", LogicalType.parse("binary")),
        *(Column.of(f"c{n}", LogicalType.parse(type_)) for n, type_ in enumerate(CANONICAL)),
    ),
)

ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**31), 2**31 - 1).map(str),
        "any text": st.none() | TEXTS,
        'a "<&> name': st.none() | TEXTS,
        "bytes": st.none() | BYTES,
        **{f"c{n}": st.none() | st.sampled_from(values) for n, values in enumerate(CANONICAL.values())},
    }
)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]))
    row = draw(ROWS)
    match op:
        case Op.INSERT:
            return Change(0, op, NAME, 2, None, row)
        case Op.DELETE:
            return Change(0, op, NAME, 2, row, None)
        case _:
            new = draw(ROWS)
            return Change(0, op, NAME, 2, row, {name: value for name, value in new.items() if value != row[name]})


TRANSACTIONS = st.lists(st.lists(changes(), min_size=1, max_size=4), min_size=1, max_size=4)

LIMITS = st.builds(WriterSettings, most_rows=st.sampled_from([0, 1, 2]), most_chars=st.sampled_from([200, 8_000_000]))


@settings(deadline=None, max_examples=150)
@given(TRANSACTIONS, LIMITS, st.integers(1, 5))
def test_transactions_read_from_files_are_those_that_were_written(
    transactions: Sequence[Sequence[Change]], limits: WriterSettings, messages_in_file: int
) -> None:
    keys = count(10)
    keyed = [KeyedTransaction(f"x{n}", one, [next(keys) for _ in one]) for n, one in enumerate(transactions)]
    writer = TransactionWriter(lambda *_: TABLE, limits)
    messages = [create_message(Creation(TABLE, 1, "0", 2)), *writer.messages(keyed)]

    with tempfile.TemporaryDirectory() as path:
        to = MessageFolder(LocalStorage(Path(path)), "shop")
        records = [
            to.record(
                OutgoingRecord("t", None, write_message(one), [(k, v.encode()) for k, v in one.properties.items()], 0)
            )
            for one in messages
        ]
        for number, first in enumerate(range(0, len(records), messages_in_file), 1):
            file = b"".join(records[first : first + messages_in_file]) + to.end((), is_empty=False)
            (Path(path) / f"{number:020}.xml").write_bytes(file)
        found = read(Folder(Path(path)).open())

    assert found == [[told(one) for one in transaction] for transaction in transactions]


def told(change: Change) -> tuple[object, ...]:
    """A change as messages tell it: an insert names no column that is NULL, unless all are."""
    after = change.after
    if change.op is Op.INSERT and after is not None:
        after = {name: value for name, value in after.items() if value is not None} or after
    return change.op.value, change.before, after
