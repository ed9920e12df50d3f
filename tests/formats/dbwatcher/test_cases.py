"""The test cases of trigger capture, each from changes to the message's bytes and back."""

from __future__ import annotations

from itertools import count

import pytest

from penstock.change import Op
from penstock.formats.dbwatcher.changes import changes_of
from penstock.formats.dbwatcher.message import Message
from penstock.formats.dbwatcher.protect import columns2xml
from penstock.formats.dbwatcher.reader import read_message
from penstock.formats.dbwatcher.transactions import KeyedTransaction, TransactionWriter, WriterSettings
from penstock.formats.dbwatcher.writer import write_message
from tests.formats.dbwatcher.cases import CASES, ELSEWHERE, TABLES, Case

_LETTERS = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}


@pytest.mark.parametrize("case", CASES, ids=[f"{case.number} {case.what}" for case in CASES])
def test_the_message_is_as_the_case_has_it_and_says_the_same_changes(case: Case) -> None:
    keys = count(1)
    transactions = [KeyedTransaction(key, did, [next(keys) for _ in did]) for key, did in case.transactions]
    writer = TransactionWriter(lambda name, _: TABLES[name], WriterSettings(**case.settings))

    found = [read_message(write_message(message), message.properties) for message in writer.messages(transactions)]

    assert [summary(message) for message in found] == list(case.messages)
    if case.whole:
        assert [message.properties["_NUM_OF_TRANSACTIONS"] for message in found] == list(case.whole)
    if case.images:
        assert [image for message in found for image in images(message)] == list(case.images)
    if found:
        assert_same_changes(case, found)


def summary(message: Message) -> str:
    actions = [_LETTERS[row.attributes["action"]] for row in message.rows]
    return f"{message.head.ident}: {','.join(actions) or message.command.value}"


def images(message: Message) -> list[tuple[str | None, str | None]]:
    """CONTENT and OLDCONTENT of each row; a message about a table has neither."""
    if not message.rows:
        return [(None, None)]
    found = []
    for row in message.rows:
        columns = columns2xml(row.columns)
        old = None if row.old is None else columns2xml(row.old)
        found.append((None, columns) if row.attributes["action"] == "DELETE" else (columns, old))
    return found


def assert_same_changes(case: Case, found: list[Message]) -> None:
    read = [part for message in found for part in changes_of(message, TABLES).parts]
    changes = [change for part in read for change in part.changes]
    sent = [change for _, did in case.transactions for change in did if change.op is not Op.DDL]

    assert [(one.op, one.table, one.before) for one in changes] == [(one.op, one.table, one.before) for one in sent]
    for one, other in zip(changes, sent, strict=True):
        left_out_nulls = one.op is Op.INSERT and other.after is not None
        after = {n: v for n, v in other.after.items() if v is not None} if left_out_nulls else other.after
        assert one.after == after


def test_every_case_is_here_or_named_as_one_of_another_place() -> None:
    assert sorted({case.number for case in CASES} | set(ELSEWHERE)) == list(range(1, 50))
    assert not {case.number for case in CASES} & set(ELSEWHERE)


def test_a_message_that_is_written_again_is_the_same() -> None:
    transactions = [KeyedTransaction(key, did, range(len(did))) for key, did in CASES[0].transactions]

    written = [
        [write_message(m) for m in TransactionWriter(lambda name, _: TABLES[name]).messages(transactions)]
        for _ in range(2)
    ]

    assert written[0] == written[1]
