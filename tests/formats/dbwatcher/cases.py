"""Test cases of trigger capture, as far as they are about messages: changes, and what must be written of them.

A case has its number in the specification's table. What that says about locks, commit order, polls and receivers is no
matter of the format; cases of nothing else stand in `ELSEWHERE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.change import Change, Image, Op, TableName
from penstock.logical import LogicalType
from penstock.schema import Column, TableSchema


def table(name: str, columns: dict[str, str], schema: str = "public") -> TableSchema:
    return TableSchema(
        TableName(schema, name), tuple(Column.of(name, LogicalType.parse(type_)) for name, type_ in columns.items())
    )


T = table(
    "t",
    {
        "id": "integer(32)",
        "name": "string(40)",
        "amount": "decimal(12,3)",
        "ts": "timestamp",
        "flag": "boolean",
        "photo": "binary",
    },
)
NOPK = table("nopk", {"a": "integer(32)", "b": "string"})
S2_T = table("t", {"id": "integer(32)", "name": "string"}, "s2")
IO = table("io", {"id": "integer(32)", "v": "string"})
PARENT = table("parent", {"id": "integer(32)"})
CHILD = table("child", {"id": "integer(32)", "pid": "integer(32)"})
MIXED_CASE = table("Mixed Case", {"Id": "integer(32)", 'a"b': "string"})
TABLES = {one.name: one for one in (T, NOPK, S2_T, IO, PARENT, CHILD, MIXED_CASE)}

FIRST = {
    "id": "1",
    "name": "first",
    "amount": "44.500",
    "ts": "2024-01-02T03:04:05.678000",
    "flag": "true",
    "photo": "AP8Q",
}
FIRST_XML = (
    '<col name="id">1</col><col name="name">first</col><col name="amount">44.500</col>'
    '<col name="ts">2024-01-02 03:04:05.678</col><col name="flag">true</col>'
    '<col name="photo" encoding="base64">AP8Q</col>'
)
N20 = {"id": "20", "name": "n", "amount": None, "ts": None, "flag": None, "photo": None}
NULLS_XML = (
    '<col name="amount" type="null"/><col name="ts" type="null"/><col name="flag" type="null"/>'
    '<col name="photo" type="null"/>'
)


def I(after: Image, to: TableSchema = T) -> Change:  # noqa: E743
    return Change(0, Op.INSERT, to.name, 1, None, after)


def U(before: Image, after: Image, to: TableSchema = T) -> Change:
    return Change(0, Op.UPDATE, to.name, 1, before, after)


def D(before: Image, to: TableSchema = T) -> Change:
    return Change(0, Op.DELETE, to.name, 1, before, None)


def ddl(action: str, to: TableSchema = T) -> Change:
    said = {"ALTER": ("{}", "{}"), "CREATE": (None, "{}"), "DROP": ("{}", None)}[action]
    return Change(0, Op.DDL, to.name, 1, {"was": said[0], "is": said[1]}, None)


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
        transactions: Their keys and changes, in commit order.
        messages: For each message its ident, and the actions of its rows or the command.
        images: For each change CONTENT and OLDCONTENT, None where it is NULL; unsaid where the case says nothing.
        settings: Of the writer.
        whole: For each message, `_NUM_OF_TRANSACTIONS`.
    """

    number: int
    what: str
    transactions: Sequence[tuple[str, Sequence[Change]]]
    messages: Sequence[str]
    images: Sequence[tuple[str | None, str | None]] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    whole: Sequence[str] = ()


def col(name: str, value: str) -> str:
    return f'<col name="{name}">{value}</col>'


def named(number: int, what: str, name: str, element: str) -> Case:
    """A row of t with this name."""
    row = {"id": str(number), "name": name}
    return Case(number, what, [("X", [I(row)])], ["X: I"], [(col("id", str(number)) + element, None)])


CASES = [
    Case(1, "insert of all types", [("X", [I(FIRST)])], ["X: I"], [(FIRST_XML, None)]),
    Case(
        2,
        "insert with nulls",
        [("X", [I({**N20, "id": "2"})])],
        ["X: I"],
        [(col("id", "2") + col("name", "n"), None)],
    ),
    named(3, "empty text", "", '<col name="name"></col>'),
    named(4, "markup", "a<b & c", '<col name="name"><![CDATA[a<b & c]]></col>'),
    named(5, "end of CDATA", "x]]>y\\z", '<col name="name" encoding="base64">eF1dPnlceg==</col>'),
    named(6, "control", "tab\there\rcr\x01end", '<col name="name" encoding="base64">dGFiCWhlcmUNY3IBZW5k</col>'),
    named(7, "blanks, quotes", "  \"q\" 's' äß€😀  ", '<col name="name">  "q" \'s\' äß€😀  </col>'),
    Case(
        8,
        "update of one column",
        [("X", [U(FIRST, {"amount": "33.000"})])],
        ["X: U"],
        [(FIRST_XML.replace("44.500", "33.000"), FIRST_XML)],
    ),
    Case(
        9,
        "update to null",
        [("X", [U(FIRST, {"name": None, "amount": None})])],
        ["X: U"],
        [
            (
                FIRST_XML.replace(col("name", "first"), '<col name="name" type="null"/>').replace(
                    col("amount", "44.500"), '<col name="amount" type="null"/>'
                ),
                FIRST_XML,
            )
        ],
    ),
    Case(10, "update of nothing", [("X", [U(FIRST, {})])], ["X: U"], [(FIRST_XML, FIRST_XML)]),
    Case(10, "the same, unsent", [("X", [U(FIRST, {})])], [], settings={"sends_unchanged": False}),
    Case(
        11,
        "update of the key",
        [("X", [U({**N20, "id": "2"}, {"id": "20"})])],
        ["X: U"],
        [(col("id", "20") + col("name", "n") + NULLS_XML, col("id", "2") + col("name", "n") + NULLS_XML)],
    ),
    Case(12, "delete", [("X", [D(N20)])], ["X: D"], [(None, col("id", "20") + col("name", "n") + NULLS_XML)]),
    Case(13, "no row", [], []),
    Case(14, "three changes of a row", [("X", [I({"id": "30"}), U({"id": "30"}, {}), D({"id": "30"})])], ["X: I,U,D"]),
    Case(15, "two transactions", [("X", [I({"id": "40"})]), ("Y", [I({"id": "41"})])], ["X: I", "Y: I"]),
    Case(16, "savepoint", [("X", [I({"id": "1"}), I({"id": "3"})])], ["X: I,I"]),
    Case(17, "rolled back", [("X", [])], []),
    Case(
        18,
        "two equal rows",
        [("X", [I({"a": "1", "b": None}, NOPK)] * 2)],
        ["X: I,I"],
        [(col("a", "1"), None)] * 2,
    ),
    Case(
        19,
        "update of equal rows",
        [("X", [U({"a": "1", "b": None}, {"b": "x"}, NOPK)] * 2)],
        ["X: U,U"],
        [(col("a", "1") + col("b", "x"), col("a", "1") + '<col name="b" type="null"/>')] * 2,
    ),
    Case(20, "another schema", [("X", [I({"id": "1", "name": "s2"}, S2_T)])], ["X: I"]),
    Case(
        21,
        "odd names",
        [("X", [I({"Id": "1", 'a"b': "v"}, MIXED_CASE)])],
        ["X: I"],
        [('<col name="Id">1</col><col name="a&quot;b">v</col>', None)],
    ),
    Case(22, "parent and child", [("X", [I({"id": "1"}, PARENT), I({"id": "10", "pid": "1"}, CHILD)])], ["X: I,I"]),
    Case(23, "cascade", [("X", [D({"id": "1"}, PARENT), D({"id": "10", "pid": "1"}, CHILD)])], ["X: D,D"]),
    Case(24, "upsert", [("X", [U({"id": "4"}, {})])], ["X: U"]),
    Case(25, "upsert of nothing", [("X", [])], []),
    Case(26, "inserts only", [("X", [I({"id": "1", "v": "a"}, IO)])], ["X: I"]),
    Case(
        27,
        "truncate",
        [("X", [Change(0, Op.TRUNCATE, NOPK.name, 1, None, None)])],
        ["X: TRUNCATE"],
        settings={"sends_truncate": True},
    ),
    Case(
        28,
        "120 zero bytes",
        [("X", [I({"id": "1", "photo": "A" * 160})])],
        ["X: I"],
        [(f'{col("id", "1")}<col name="photo" encoding="base64">{"A" * 160}</col>', None)],
    ),
    Case(29, "transaction id", [("7001", [I({"id": "1"})])], ["7001: I"]),
    Case(30, "late commit", [("Y", [U({"id": "2"}, {})]), ("X", [U({"id": "1"}, {})])], ["Y: U", "X: U"]),
    Case(
        31,
        "commit order",
        [("Y", [U({"id": "2"}, {})]), ("X", [U({"id": "1"}, {}), U({"id": "2"}, {})])],
        ["Y: U", "X: U,U"],
    ),
    Case(
        33, "many transactions", [(str(n), [I({"id": str(n)})]) for n in range(1000)], [f"{n}: I" for n in range(1000)]
    ),
    Case(
        34,
        "collected",
        [(str(n), [I({"id": str(n)})]) for n in range(7)],
        ["0: I,I,I", "3: I,I,I", "6: I"],
        settings={"most_transactions": 3},
        whole=["3", "3", "1"],
    ),
    Case(
        35,
        "rows at most",
        [("X", [I({"id": str(n)}) for n in range(5)])],
        ["X: I,I,I", "X: I,I"],
        settings={"most_rows": 2},
        whole=["0", "1"],
    ),
    Case(
        39,
        "a column more",
        [("X", [ddl("ALTER")]), ("Y", [I({"id": "1", "city": "c"})])],
        ["X: ALTER", "Y: I"],
        [(None, None), (col("id", "1") + col("city", "c"), None)],
    ),
    Case(40, "a column of another name", [("X", [ddl("ALTER")])], ["X: ALTER"]),
    Case(41, "dropped and made", [("X", [ddl("DROP")]), ("Y", [ddl("CREATE")])], ["X: DROP", "t: CREATE"]),
    Case(42, "dropped", [("X", [ddl("DROP")])], ["X: DROP"]),
    Case(48, "delete without a long column", [("X", [D({"id": "1"})])], ["X: D"], [(None, col("id", "1"))]),
]

ELSEWHERE = {
    32: "a message that comes again",
    36: "two sets",
    37: "registration of a table; its CREATE and content are in test_tables.py",
    38: "registration of a table that is not there",
    43: "another version",
    44: "a statement; its message is in test_tables.py",
    45: "initial update",
    46: "initial update that is cancelled",
    47: "a receiver that fails",
    49: "an error in capture; that it is not sent is in test_changes.py",
}
