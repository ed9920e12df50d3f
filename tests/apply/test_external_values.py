"""Values that are not in their image, on their way into rows: by each path, and where the target does not take them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from penstock.apply.apply_errors import ROW_MISSING, TYPE_DIFFERS, VALUE_MISSING, VALUE_TOO_LONG
from penstock.apply.conflict_methods import ConflictKind, ConflictRules, Method, Resolver, TableRules
from penstock.apply.entry_edits import by_form
from penstock.apply.group import COLUMNS
from penstock.apply.lane import ServerConfig
from penstock.apply.large import LargeTransaction
from penstock.apply.task import TaskContext, apply_large
from penstock.change import Op, TableName
from penstock.dialects.postgres.target.access import PostgresTarget
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.errors import OperatorError
from penstock.external_values import ExternalValue
from penstock.position import Scn
from tests.apply.handled import on, settings, statements
from tests.hand_made import T, Target, as_batch, insert, update

MADE = """
CREATE TABLE doc (id int PRIMARY KEY, text text, data bytea, short varchar(4), said json);
CREATE TABLE hist (id int);
CREATE TABLE numbered (id int PRIMARY KEY, no int GENERATED ALWAYS AS IDENTITY, text text, data bytea);
"""


@dataclass(frozen=True)
class Store:
    """Values by their places, each in pieces of a byte."""

    values: dict[str, bytes]

    def pieces(self, place: str) -> Iterator[bytes]:
        return (bytes([byte]) for byte in self.values[place])


STORE = Store({"a": "fünf".encode(), "b": bytes(range(256)), "empty": b"", "no text": b"a\0b", "json": b'{"n": 1}'})


def there(place: str, *, size: int = 5, is_binary: bool = False, is_appended: bool = False) -> ExternalValue:
    return ExternalValue.at(place, size, is_binary=is_binary, is_appended=is_appended)


class Copy(Target):
    """A target that is brought values from a store."""

    store: Store | None = STORE

    def context(self, config: ServerConfig = ServerConfig()) -> TaskContext:
        return replace(super().context(config), target=PostgresTarget(self.url, "A1", values=self.store))

    @property
    def queue(self) -> PostgresErrorQueue:
        return PostgresErrorQueue(self.url, "A1", values=self.store)

    def row(self, number: int = 1) -> dict[str, Any]:
        (found,) = self.rows(f"SELECT text, data, short, said FROM doc WHERE id = {number}")
        return {n: v for n, v in zip(("text", "data", "short", "said"), found, strict=True) if v is not None}


@pytest.fixture
def copy(database: str) -> Iterator[Copy]:
    made = Copy(database, MADE)
    yield made
    made.close()


def test_values_are_written_in_columns_of_every_type_that_takes_them(copy: Copy) -> None:
    values = {"text": there("a"), "data": there("b", is_binary=True), "short": there("a"), "said": there("json")}
    copy.apply(T(100, insert("doc", id=1, **values), insert("doc", id=2, text=there("empty"))))

    assert copy.row() == {"text": "fünf", "data": bytes(range(256)), "short": "fünf", "said": {"n": 1}}
    assert copy.rows("SELECT text FROM doc WHERE id = 2") == [("",)]
    assert copy.errors() == []


def test_what_comes_before_and_after_in_a_group_goes_the_set_path(copy: Copy) -> None:
    plain = [T(100 + n, insert("doc", id=n, text="x")) for n in range(50)]

    (result,) = copy.apply(*plain, T(200, update("doc", {"id": 3, "text": "x"}, {"text": there("a")})))

    assert (result.set_changes, result.row_changes) == (50, 1)
    assert copy.row(3) == {"text": "fünf"}


def test_a_large_transaction_has_them_too(copy: Copy) -> None:
    changes = [insert("doc", id=n, text=there("a") if n == 7 else "x") for n in range(20)]
    batch = as_batch([T(100, *changes)]).select(COLUMNS)
    large = LargeTransaction(Scn(100), np.zeros(1, np.int64), batch.num_rows, 1, lambda: iter([batch]))

    result = apply_large(large, copy._claim(0, moves_watermark=True), copy.context(ServerConfig(group_changes=4)))

    assert (result.failure, result.row_changes) == (None, 20)
    assert copy.row(7) == {"text": "fünf"}


def test_what_is_appended_comes_behind_each_value_once(copy: Copy) -> None:
    copy.connection.execute(r"INSERT INTO doc VALUES (1, 'old ', '\x01', 'o', NULL)")
    old = {"id": 1}
    values = {
        "text": ExternalValue.appending("and new", is_binary=False),
        "data": there("b", is_binary=True, is_appended=True),
        "short": there("a", is_appended=True),
    }
    transactions = [
        T(100, update("doc", old, values | {"short": ExternalValue.appending("ld", is_binary=False)})),
        T(110, update("doc", old, {"data": ExternalValue.appending("/w==", is_binary=True)})),
    ]
    copy.apply(*transactions, complete=False)
    copy.apply(*transactions)

    assert copy.row() == {"text": "old and new", "data": b"\x01" + bytes(range(256)) + b"\xff", "short": "old"}
    assert copy.errors() == []


def test_a_row_whose_identity_changes_has_them_too(copy: Copy) -> None:
    copy.connection.execute("INSERT INTO numbered (id, text) VALUES (1, 'old ')")
    values = {"no": 7, "text": there("a", is_appended=True), "data": there("b", is_binary=True)}

    copy.apply(T(100, update("numbered", {"id": 1, "no": 1}, values)))

    assert copy.errors() == []
    assert copy.rows("SELECT id, no, text, data FROM numbered") == [(1, 7, "old fünf", bytes(range(256)))]


REFUSED = {
    "longer than the column": (
        update("doc", {"id": 1}, {"short": there("a", is_appended=True)}),
        VALUE_TOO_LONG,
        "right truncation",
    ),
    "text into bytes": (insert("doc", id=2, data=there("a")), TYPE_DIFFERS, "'data' is bytea, and its large value"),
    "bytes into text": (insert("doc", id=2, text=there("b", is_binary=True)), TYPE_DIFFERS, "is binary"),
    "appended to what is not text": (
        update("doc", {"id": 1}, {"said": there("json", is_appended=True)}),
        TYPE_DIFFERS,
        "which nothing is appended to",
    ),
    "appended to null": (
        update("doc", {"id": 1}, {"data": there("b", is_binary=True, is_appended=True)}),
        VALUE_MISSING,
        "column 'data' was appended to, and is null at the target",
    ),
    "appended to a row that is new": (
        insert("doc", id=2, text=there("a", is_appended=True)),
        VALUE_MISSING,
        "column 'text' was appended to, and there is no row",
    ),
    "appended to a row that is gone": (
        update("doc", {"id": 2}, {"text": there("a", is_appended=True)}),
        ROW_MISSING,
        "",
    ),
    "too large": (
        insert("doc", id=2, text=there("a", size=1_000_000_001)),
        VALUE_TOO_LONG,
        "column 'text' has 1000000001 bytes",
    ),
    "too large together": (
        insert("doc", id=2, text=there("a", size=500_000_001), data=there("b", size=500_000_000, is_binary=True)),
        VALUE_TOO_LONG,
        "the large values of the row have 1000000001",
    ),
    "too large with what is there": (
        update("doc", {"id": 1}, {"text": there("a", size=999_999_997, is_appended=True)}),
        VALUE_TOO_LONG,
        "column 'text' has 1000000001 bytes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_target_does_not_take_goes_to_the_error_queue(copy: Copy, case: str) -> None:
    change, number, says = REFUSED[case]
    copy.connection.execute("INSERT INTO doc VALUES (1, 'here', NULL, 'shor', '1')")

    copy.apply(T(100, change), T(110, insert("doc", id=9)))

    (error,) = copy.errors()
    assert (error.commit_scn, error.error_number) == (100, number)
    assert says in error.error_message
    assert copy.rows("SELECT id, text FROM doc ORDER BY id") == [(1, "here"), (9, None)]


def test_text_that_the_server_cannot_hold_is_refused_without_being_shown(copy: Copy) -> None:
    copy.apply(T(100, insert("doc", id=1, text=there("no text"))))

    (error,) = copy.errors()
    assert "a zero byte (NUL), which PostgreSQL does not store" in error.error_message


@pytest.mark.parametrize("op", ["insert", "update"])
def test_a_resolver_writes_the_value_where_it_overwrites(copy: Copy, op: str) -> None:
    copy.connection.execute("INSERT INTO doc VALUES (1, 'another', NULL, 'else', NULL)")
    resolver = Resolver(Op(op), ConflictKind.EXISTS, Method.OVERWRITE)
    rules = ConflictRules(tables={TableName("public", "doc"): TableRules(resolvers=(resolver,))})
    change = (
        insert("doc", id=1, text=there("a"))
        if op == "insert"
        else update("doc", {"id": 1, "short": "x"}, {"text": there("a")})
    )

    copy.apply(T(100, change), config=ServerConfig(conflicts=rules))

    assert copy.errors() == []
    assert copy.row()["text"] == "fünf"


def test_a_resolver_that_would_compare_the_value_does_not_decide(copy: Copy) -> None:
    copy.connection.execute("INSERT INTO doc VALUES (1, 'another', NULL, 'else', NULL)")
    resolver = Resolver(Op.UPDATE, ConflictKind.EXISTS, Method.MAXIMUM, by="text")
    rules = ConflictRules(tables={TableName("public", "doc"): TableRules(resolvers=(resolver,))})

    copy.apply(
        T(100, update("doc", {"id": 1, "short": "x"}, {"text": there("a")})), config=ServerConfig(conflicts=rules)
    )

    (error,) = copy.errors()
    assert error.error_number == VALUE_MISSING
    assert "can be written, not compared" in error.error_message
    assert copy.row()["text"] == "another"


def test_handlers_are_not_shown_what_stands_for_a_value(copy: Copy) -> None:
    handlers = settings("doc", insert=on(statements("seen", "INSERT INTO public.hist VALUES (:new.id)")))

    copy.apply(
        T(100, insert("doc", id=1, text=there("a"))),
        T(110, insert("doc", id=2, text="x")),
        config=ServerConfig(handlers=handlers),
    )

    (error,) = copy.errors()
    assert (error.commit_scn, error.error_number) == (100, VALUE_MISSING)
    assert "column 'text' has a value that is too large for handlers" in error.error_message
    assert copy.rows("SELECT id FROM hist") == [(2,)]


def test_an_edited_entry_keeps_the_values_that_it_does_not_hold(copy: Copy) -> None:
    copy.apply(T(100, insert("doc", id=1, text=there("a"), short="too long")))
    (error,) = copy.errors()
    form = {
        "id": error.id,
        "changes": [
            {
                "number": 1,
                "op": "insert",
                "table": "public.doc",
                "before": None,
                "after": {"id": "1", "text": str(there("a")), "short": "fits"},
            }
        ],
    }

    assert copy.retry(edit=by_form(json.dumps(form))) == [error.id]
    assert copy.row() == {"text": "fünf", "short": "fits"}


def test_a_session_that_knows_no_store_says_so(copy: Copy) -> None:
    copy.store = None

    with pytest.raises(OperatorError, match="the source that has it is not known here"):
        copy.apply(T(100, insert("doc", id=1, text=there("a"))))

    assert copy.rows("SELECT * FROM doc") == []
