"""What becomes of changes and rows of one table."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import change as c
from penstock.change import NO_VERSION, TableName
from penstock.errors import ConfigError, MalformedInputError, OperatorError
from penstock.external_values import ExternalValue
from penstock.rules.stream import StreamRules
from penstock.schema import Column, ForeignKey, TableSchema, Unique
from tests.hand_made import Lcr, T, as_batch, delete, insert, truncate, update
from tests.rules.made import CUSTOMERS, TYPES, as_seen, put_through, rule_of, rule_set, schema

TABLE = schema(TYPES)
ANN = {"id": "1", "name": "ann", "ssn": "123", "net": "1.00", "tax": "0.19", "region": "EU"}
BOB = {"id": "2", "name": "bob", "ssn": None, "net": "2.00", "tax": None, "region": "US"}


@pytest.mark.rule("A-20")
def test_columns_are_left_out_renamed_and_added() -> None:
    rule = rule_of(TABLE, rename={"name": "full_name"}, drop=["ssn"], add={"origin": "'shop'", "total": "net + tax"})

    made = put_through(
        rule,
        T(1, insert("customers", **ANN), insert("customers", **BOB)),
        T(2, update("customers", ANN, {"name": "anna", "net": "3.00"}), delete("customers", **BOB)),
    )

    ann = {
        "id": "1",
        "full_name": "ann",
        "net": "1.00",
        "tax": "0.19",
        "region": "EU",
        "origin": "shop",
        "total": "1.19",
    }
    bob = {"id": "2", "full_name": "bob", "net": "2.00", "tax": None, "region": "US", "origin": "shop", "total": None}
    assert made == [
        ("insert", None, ann),
        ("insert", None, bob),
        ("update", ann, {"full_name": "anna", "net": "3.00", "total": "3.19"}),
        ("delete", bob, None),
    ]
    assert [(column.name, column.type) for column in rule.table.columns[-2:]] == [
        ("origin", "string"),
        ("total", "decimal(11,2)"),
    ]


@pytest.mark.rule("A-23")
def test_an_update_that_moves_a_row_in_or_out_of_the_subset_becomes_an_insert_or_a_delete() -> None:
    rule = rule_of(TABLE, rows="region = 'EU'")

    made = put_through(
        rule,
        T(1, insert("customers", **ANN), insert("customers", **BOB)),
        T(2, update("customers", BOB, {"name": "rob"})),
        T(3, update("customers", BOB | {"name": "rob"}, {"region": "EU", "tax": "1.00"})),
        T(4, update("customers", ANN, {"name": "anna"}), update("customers", ANN | {"name": "anna"}, {"region": None})),
        T(5, delete("customers", **(ANN | {"name": "anna", "region": None}))),
        T(6, delete("customers", **(BOB | {"region": "EU"}))),
    )

    assert made == [
        ("insert", None, ANN),
        ("insert", None, BOB | {"name": "rob", "region": "EU", "tax": "1.00"}),
        ("update", ANN, {"name": "anna"}),
        ("delete", ANN | {"name": "anna"}, None),
        ("delete", BOB | {"region": "EU"}, None),
    ]


def test_an_update_of_nothing_that_the_target_has_is_left_out() -> None:
    rule = rule_of(TABLE, drop=["ssn"], add={"is_dear": "net > 100"})

    made = put_through(rule, T(1, update("customers", ANN, {"ssn": "9"}), update("customers", ANN, {"net": "101.00"})))

    assert [(op, after) for op, _, after in made] == [("update", {"net": "101.00", "is_dear": "true"})]


@pytest.mark.parametrize("drop", [["net"], ["ssn", "net", "tax", "region", "id", "name"]])
def test_a_further_column_may_be_all_that_an_update_changes(drop: list[str]) -> None:
    rule = rule_of(TABLE, drop=drop, add={"total": "net + tax"})

    made = put_through(rule, T(1, update("customers", ANN, {"net": "2.00"})))

    kept = {name: value for name, value in ANN.items() if name not in drop}
    assert made == [("update", kept | {"total": "1.19"}, {"total": "2.19"})]


@pytest.mark.rule("A-20")
@pytest.mark.parametrize(
    ("operations", "left"),
    [
        (["insert", "update"], ["insert", "update", "insert"]),
        (["delete", "truncate"], ["delete", "delete", "truncate"]),
        (["truncate"], ["truncate"]),
    ],
)
def test_operations_are_chosen_by_what_a_change_has_become(operations: list[str], left: list[str]) -> None:
    rule = rule_of(TABLE, rows="region = 'EU'", operations=operations)

    made = put_through(
        rule,
        T(1, insert("customers", **ANN), update("customers", ANN, {"name": "x"}), delete("customers", **ANN)),
        T(2, update("customers", BOB, {"region": "EU"}), update("customers", ANN, {"region": "US"})),
        T(3, truncate("customers")),
    )

    assert [op for op, _, _ in made] == left


def test_rows_of_a_first_copy_become_what_their_changes_would() -> None:
    rule = rule_of(TABLE, rename={"name": "full_name"}, drop=["ssn"], add={"total": "net + tax"}, rows="region = 'EU'")
    rows = pa.RecordBatch.from_pylist([BOB, ANN], schema=pa.schema([(name, pa.string()) for name in TYPES]))

    made = rule.rows(rows)

    assert made.to_pylist() == [after for _, _, after in put_through(rule, T(1, insert("customers", **ANN)))]
    assert made.schema.names == rule.table.column_names


@pytest.mark.parametrize(
    "settings",
    [
        {"rename": {"id": "name", "name": "id"}},
        {"rename": {"id": 'a "b"', "name": "x,y"}},
        {"keep": ["region"], "rename": {"region": "name"}},
        {"drop": ["id", "ssn", "net", "tax", "region"], "rename": {"name": "ssn"}},
        {"keep": ["id", "name", "region"], "rename": {"id": "1", "name": "2", "region": "3"}},
        {"drop": ["name"], "add": {"name": "upper(region)"}},
    ],
)
@pytest.mark.parametrize("row", [ANN, BOB, ANN | {"name": '"ssn":"', "ssn": ',"id":null', "region": '\\"}{'}])
def test_whatever_names_are_called_their_values_follow_them(settings: Any, row: Any) -> None:
    rule = rule_of(TABLE, **settings)
    drop, rename = settings.get("drop", ()), settings.get("rename", {})
    expected = {
        rename.get(name, name): value
        for name, value in row.items()
        if name in settings.get("keep", row) and name not in drop
    }
    if "add" in settings:
        expected["name"] = row["region"].upper()

    made = put_through(rule, T(1, insert("customers", **row), delete("customers", **row)))

    assert made == [("insert", None, expected), ("delete", expected, None)]


def test_the_key_of_a_change_follows_its_columns() -> None:
    table = schema({"a": "integer", "b": "integer", "c": "text"}, primary_key=Unique("k", ("a", "b"), ("a", "b")))
    batch = as_batch(
        [T(1, insert("customers", a=1, b=2, c="x"), update("customers", {"a": 1, "b": 2, "c": "x"}, {"c": "y"}))]
    )
    batch = batch.set_column(batch.schema.get_field_index(c.KEY), c.KEY, pa.array(['{"a":"1","b":"2"}'] * 2))

    renamed = rule_of(table, rename={"b": "z"})
    dropped = rule_of(table, drop=["b"])
    moved = rule_of(table, rows="c = 'y'")

    assert renamed.changes(batch)[c.KEY].to_pylist() == ['{"a":"1","z":"2"}'] * 2
    assert dropped.changes(batch)[c.KEY].to_pylist() == [None, None]
    assert moved.changes(batch)[c.KEY].to_pylist() == ['{"a":"1","b":"2"}']
    assert (renamed.keeps_key, dropped.keeps_key, moved.keeps_key) == (True, False, True)


def test_keys_and_references_are_those_of_the_target() -> None:
    orders = TableName("public", "orders")
    customer = ForeignKey("f", orders, ("customer",), CUSTOMERS, ("id",))
    other = ForeignKey("g", orders, ("region",), TableName("public", "regions"), ("id",))
    rules = rule_set(
        {
            "tables": {
                "public.customers": {"to": "sales.clients", "rename": {"id": "client"}},
                "public.orders": {"rename": {"customer": "client"}, "drop": ["note"]},
                "public.*": {"to": "sales.*"},
                "public.regions": {"drop": ["id"]},
            }
        }
    )
    types = {"id": "integer", "customer": "integer", "region": "text", "note": "text"}
    table = schema(types, orders, foreign_keys=(customer, other), uniques=(Unique("u", ("note",), ("note",)),))
    parent = schema(TYPES, referenced_by=(customer,), uniques=(Unique("e", (), ("id",)),), checks=("net > 0",))

    made, above = rules.rule(table, table), rules.rule(parent, parent)

    assert made is not None
    assert above is not None
    child, clients = TableName("sales", "orders"), TableName("sales", "clients")
    moved = replace(customer, child=child, columns=("client",), parent=clients, parent_columns=("client",))
    assert (made.table.name, made.table.foreign_keys, made.table.uniques) == (child, (moved,), ())
    assert above.table.referenced_by == (moved,)
    assert above.table.primary_key == Unique("customers_pkey", ("client",), ("client",))
    assert (above.table.uniques[0].mentions, above.table.checks) == (("client",), ())


def test_changes_of_a_part_get_the_name_of_its_root_and_the_version_they_are_given() -> None:
    rules = rule_set({"tables": {"public.orders": {"to": "sales.*", "rename": {"name": "n"}}}})
    root, part = (schema(TYPES, TableName("public", name)) for name in ("orders", "orders_1"))

    rule = rules.rule(part, root)
    assert rule is not None
    (made,) = StreamRules({(part.name, 1): rule.numbered(7)}).apply([as_batch([T(1, insert("orders_1", **ANN))])])

    assert [made[name][0].as_py() for name in (c.SCHEMA_NAME, c.TABLE_NAME, c.TABLE_VERSION)] == ["sales", "orders", 7]
    assert rules.rule(part, part) is None


def test_other_tables_pass_between_in_order_and_unread() -> None:
    rule = rule_of(TABLE, rows="region = 'EU'", drop=["ssn"])
    batch = as_batch(
        [
            T(1, insert("other", x=1), insert("customers", **BOB), insert("customers", **ANN), insert("other", x=2)),
            T(2, truncate("customers"), delete("customers", **BOB), insert("third", y=1)),
        ]
    )
    unread = batch.to_pylist()
    unread[0][c.AFTER] = "not JSON"
    batch = pa.RecordBatch.from_pylist(unread, schema=batch.schema)
    stream = pickle.loads(pickle.dumps(StreamRules({(CUSTOMERS, 1): rule})))

    (made,) = stream.apply([batch, batch.slice(1, 1), batch.slice(0, 0)])

    assert made.schema == batch.schema
    assert [(row[c.COMMIT_SCN], row[c.CHANGE_SEQ], row[c.TABLE_NAME]) for row in made.to_pylist()] == [
        (1, 0, "other"),
        (1, 2, "customers"),
        (1, 3, "other"),
        (2, 0, "customers"),
        (2, 2, "third"),
    ]
    assert made[c.AFTER][0].as_py() == "not JSON"
    assert as_seen([made.slice(1, 1)]) == [("insert", None, {n: v for n, v in ANN.items() if n != "ssn"})]


def test_a_gap_is_told_of_the_table_at_the_target() -> None:
    rule = rule_of(TABLE, to="sales.clients", rows="region = 'EU'", operations=["insert"])
    batch = as_batch([T(1, Lcr("gap", "customers", None, None))], version=NO_VERSION)

    (made,) = StreamRules({(CUSTOMERS, 1): rule}).apply([batch])

    assert [made[name][0].as_py() for name in (c.OP, c.TABLE_NAME, c.TABLE_VERSION)] == ["gap", "clients", NO_VERSION]


@pytest.mark.parametrize(
    "settings", [{"rows": "region = 'EU'"}, {"add": {"x": "region"}}, {"keep": ["id"]}, {"rename": {"id": "reason"}}]
)
def test_the_reason_of_a_gap_passes_as_it_is(settings: Any) -> None:
    reason = {"reason": "partition public.p1 was detached"}
    other = [insert("customers", **ANN), Lcr("gap", "customers", reason, None), delete("customers", **ANN)]

    made = put_through(rule_of(TABLE, **settings), T(1, *other))

    assert made[1] == ("gap", reason, None)
    assert [op for op, _, _ in made] == ["insert", "gap", "delete"]


def test_a_partition_that_is_truncated_leaves_a_gap_and_empties_nothing_else() -> None:
    whole, part = schema(TYPES), schema(TYPES, TableName("public", "part"))
    for settings in ({"to": "far.whole"}, {"rows": "region = 'EU'"}, {"drop": ["ssn"]}):
        rule = rule_set({"tables": {"public.customers": settings}}).rule(part, whole)
        assert rule is not None
        assert put_through(rule, T(1, truncate("part"))) == [
            ("gap", {"reason": "partition public.part was truncated"}, None)
        ]
    kept = rule_set({"tables": {"public.customers": {"operations": ["insert"]}}}).rule(part, whole)
    assert kept is not None
    assert put_through(kept, T(1, truncate("part"))) == []


@pytest.mark.parametrize("settings", [{"rows": "region = 'EU'"}, {"add": {"x": "region"}}, {"rows": "id = 1"}])
@pytest.mark.parametrize(
    "change",
    [
        update("customers", {"id": "1"}, {"name": "x"}),
        update("customers", {"id": "1"}, {"region": "EU"}),
        delete("customers", id="1"),
        insert("customers", id="1"),
    ],
)
def test_what_the_source_did_not_log_is_not_guessed(settings: Any, change: Any) -> None:
    rule = rule_of(TABLE, **settings)
    if settings == {"rows": "id = 1"}:
        assert put_through(rule, T(7, change))[0][0] == change.op
        return

    with pytest.raises(
        MalformedInputError, match=r"rules\.tables\.public\.customers\.\w.*lacks column 'region'"
    ) as caught:
        put_through(rule, T(7, change))

    assert "table public.customers, positions 7 to 7" in caught.value.where


def test_a_row_that_moves_in_must_be_known_whole() -> None:
    rule = rule_of(TABLE, rows="region = 'EU'")
    with pytest.raises(MalformedInputError, match="lacks column 'name'"):
        put_through(rule, T(7, update("customers", {"id": "1", "region": "US"}, {"region": "EU"})))


@pytest.mark.parametrize(
    "settings", [{"rows": "CAST(name AS INTEGER) > 1"}, {"add": {"n": "CAST(name AS INTEGER)", "m": "1"}}]
)
def test_a_row_without_a_value_makes_its_change_a_gap_and_its_reason_does_not_show_it(settings: Any) -> None:
    rule = rule_of(TABLE, **settings)
    bad, good = ANN | {"name": "s3cret"}, ANN | {"id": "2", "name": "7"}

    made = put_through(
        rule,
        T(1, insert("customers", **good), insert("customers", **bad), truncate("customers")),
        T(2, update("customers", good, {"name": "s3cret"}), update("customers", good, {"region": "US"})),
        T(3, delete("customers", **bad)),
    )

    assert [op for op, *_ in made] == ["insert", "gap", "truncate", "gap", "update", "gap"]
    gaps = [before for op, before, _ in made if op == "gap"]
    assert [gap["operation"] for gap in gaps] == ["insert", "update", "delete"]
    assert [json.loads(gap["new"] or gap["old"])["name"] for gap in gaps] == ["s3cret"] * 3
    for gap in gaps:
        assert "has no value for a row: conversion error" in gap["reason"]
        assert "s3cret" not in gap["reason"]
    with pytest.raises(OperatorError, match="has no value for a row: conversion error") as caught:
        rule.rows(pa.RecordBatch.from_pylist([good, bad]))
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__
    told, faults = rule.told_rows(pa.RecordBatch.from_pylist([bad, good, bad]))
    assert (told.num_rows, sorted(faults)) == (1, [0, 2])


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("name || chr(0)", "a text with a zero byte"),
        ("DATE '5000-01-01 (BC)'", "invalid input error"),
        ("CAST('5000-01-01 (BC)' AS TIMESTAMP)", "invalid input error"),
        ("CAST(net * 100000000 AS DECIMAL(10,2))", "conversion error"),
    ],
)
def test_a_value_that_no_column_can_hold_is_that_changes_error(expression: str, why: str) -> None:
    rule = rule_of(TABLE, add={"made": f"CASE WHEN id = 1 THEN NULL ELSE {expression} END"})
    fine, bad = ANN, ANN | {"id": "2"}

    made = put_through(rule, T(1, *(insert("customers", **row) for row in (fine, bad, fine, bad))))

    assert [op for op, *_ in made] == ["insert", "gap", "insert", "gap"]
    assert why in made[1][1]["reason"]


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("unlist([net, tax])", r"calls unlist\(\), which is not in the catalogue of functions"),
        ("1 + unlist([net])", r"calls unlist\(\)"),
        ("unnest([net, tax])", r"calls unnest\(\)"),
        ("nosuch(net)", "Catalog Error"),
    ],
)
def test_an_expression_yields_one_value_for_each_row(expression: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        rule_of(TABLE, add={"made": expression})


ARROWS = TableSchema(
    CUSTOMERS, (Column("id", "integer", "integer"), Column("j", "jsonb", "jsonb"), Column("l", "text", "text"))
)


@pytest.mark.parametrize(
    ("expression", "made"),
    [
        ("j -> 'a' ->> 'b'", "x"),
        ("(j -> 'a' -> 'b') ->> '$'", "x"),
        ("CASE WHEN (j -> 'a' ->> 'b') = 'x' THEN 1 END", "1"),
        ("CAST(l AS JSON) ->> 'n'", "12"),
    ],
)
def test_an_arrow_finds_what_is_inside_json(expression: str, made: str) -> None:
    rule = rule_of(ARROWS, add={"made": expression})
    rows = rule.rows(pa.RecordBatch.from_pylist([{"id": "1", "j": '{"a": {"b": "x"}}', "l": '{"n": 12}'}]))

    assert rows["made"].to_pylist() == [made]


def test_a_lambda_is_refused_as_one() -> None:
    with pytest.raises(ConfigError, match="holds a lambda"):
        rule_of(TABLE, add={"made": "list_transform([net], x -> x + 1)[1]"})


@pytest.mark.parametrize(
    ("expression", "document", "made"),
    [
        # What the number is matters, and its digits are lost.
        ("j ->> 'n'", '{"n": 2.50}', None),
        ("j ->> 'n'", '{"n": 123456789012345678.91}', None),
        ("j -> 'a'", '{"a": [1, 1e2]}', None),
        ("CAST(j ->> 'n' AS DECIMAL(38,2))", '{"n": 123456789012345678.91}', None),
        ("CAST(l AS JSON) ->> 'n'", '{"n": 2.50}', None),
        # They are kept, or it has no part in what is asked.
        ("j ->> 'n'", '{"n": 2.5}', "2.5"),
        ("j ->> 'n'", '{"n": 1234567890123456789}', "1234567890123456789"),
        ("j ->> 't'", '{"n": 2.50, "t": "x"}', "x"),
        ("j ->> 't'", '{"t": "2.50"}', "2.50"),
        ("j", '{"n": 2.50}', '{"n": 2.50}'),
        ("CAST(j ->> 'n' AS DECIMAL(10,2))", '{"n": 2.50}', "2.50"),
        ("CAST(j ->> 'n' AS DECIMAL(15,2))", '{"n": 1234567890123.40}', "1234567890123.40"),
        ("CAST(CAST(j ->> 'n' AS DECIMAL(10,2)) AS VARCHAR)", '{"n": 2.50}', "2.50"),
        ("CAST(j ->> 'n' AS DOUBLE)", '{"n": 123456789012345678.91}', "1.2345678901234568e+17"),
        ("CASE WHEN CAST(j ->> 'n' AS DECIMAL(38,2)) > 2 THEN 'big' END", '{"n": 123456789012345678.91}', "big"),
    ],
)
def test_numbers_inside_json_keep_their_digits_or_have_no_value(
    expression: str, document: str, made: str | None
) -> None:
    rule = rule_of(ARROWS, add={"made": expression})
    row = {"id": "1", "j": document, "l": document}
    rows, faults = rule.told_rows(pa.RecordBatch.from_pylist([row]))

    assert rows["made"].to_pylist() == ([] if made is None else [made])
    assert [fault.what.rpartition(": ")[2] for fault in faults.values()] == (
        ["a number inside JSON would come out with other digits"] if made is None else []
    )
    # Of a longer number a double, which is all there is to cast, has other digits already.
    assert all("a DECIMAL, which keeps up to 15 digits" in fault.do for fault in faults.values())


@pytest.mark.parametrize(
    "text",
    ["007.5", "00000000000000000012", "-012345678901234567890", "-00.1", "1e999", "1.5e", "a 01.50 b", "0e", "2.50"],
)
def test_what_looks_like_a_number_beside_json_is_text(text: str) -> None:
    """JSON has no such numbers; a text beside it may hold them."""
    rule = rule_of(ARROWS, add={"made": "(j ->> 't') || l"})
    rows, faults = rule.told_rows(pa.RecordBatch.from_pylist([{"id": "1", "j": '{"t": "x"}', "l": text}]))

    assert rows["made"].to_pylist() == [f"x{text}"]
    assert faults == {}


@pytest.mark.parametrize(
    "expression",
    [
        "to_json(net)",
        "json_object('a', net)",
        "json_array(to_json(net + 1))",
        "CAST([net] AS JSON) -> 0",
        "to_json({'a': net})",
    ],
)
def test_a_decimal_is_not_put_into_json_where_it_loses_digits(expression: str) -> None:
    with pytest.raises(ConfigError, match="puts a decimal into JSON, where it loses digits"):
        rule_of(TABLE, add={"made": expression})


@pytest.mark.parametrize(
    ("expression", "made"),
    [
        ("json_object('a', CAST(net AS VARCHAR)) ->> 'a'", "2.50"),
        ("json_object('a', CAST(net AS VARCHAR), 'b', name)", '{"a":"2.50","b":"ann"}'),
    ],
)
def test_a_decimal_keeps_its_digits_in_json(expression: str, made: str) -> None:
    rule = rule_of(TABLE, add={"made": expression})

    assert rule.rows(pa.RecordBatch.from_pylist([ANN | {"net": "2.50"}]))["made"].to_pylist() == [made]


STEP = """
import pyarrow.compute as pc

def mask(rows):
    at = rows.schema.get_field_index("full_name")
    return rows.set_column(at, "full_name", pc.utf8_slice_codeunits(rows["full_name"], 0, 1))

def fail(rows):
    raise ValueError(rows["full_name"][0].as_py())

def fewer(rows):
    return rows.slice(1)

def leave(rows):
    raise SystemExit(3)

def others(rows):
    return rows.drop_columns(["id"])

def numbers(rows):
    return rows.set_column(0, "id", rows["id"].cast("int64"))

def nothing(rows):
    pass

def zero(rows):
    names = [name if name == "fine" else name + "\\0" for name in rows["full_name"].to_pylist()]
    return rows.set_column(rows.schema.get_field_index("full_name"), "full_name", [names])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steps")
    (folder / "steps_of_tests.py").write_text(STEP)
    return folder


@pytest.mark.rule("A-20")
def test_a_step_sees_old_and_new_rows_alike_and_comes_last(folder: Path) -> None:
    rule = rule_of(TABLE, folder, rename={"name": "full_name"}, keep=["id", "name"], step="steps_of_tests:mask")
    rule = pickle.loads(pickle.dumps(rule))

    made = put_through(
        rule,
        T(1, insert("customers", **ANN), update("customers", ANN, {"name": "anna"}), truncate("customers")),
        T(2, update("customers", ANN | {"name": "anna"}, {"name": "bea"}), delete("customers", **BOB)),
    )

    assert made == [
        ("insert", None, {"id": "1", "full_name": "a"}),
        ("truncate", None, None),
        ("update", {"id": "1", "full_name": "a"}, {"full_name": "b"}),
        ("delete", {"id": "2", "full_name": "b"}, None),
    ]
    assert rule.rows(pa.RecordBatch.from_pylist([ANN])).to_pylist() == [{"id": "1", "full_name": "a"}]
    assert not rule.keeps_key


@pytest.mark.rule("A-21")
@pytest.mark.parametrize(
    ("step", "what"),
    [
        ("fail", r"failed: ValueError at steps_of_tests\.py:9"),
        ("leave", r"failed: SystemExit at steps_of_tests\.py"),
        ("fewer", "returned 0 rows for 1"),
        ("others", "returned the columns"),
        ("numbers", "returned int64, not text, for the column 'id'"),
        ("nothing", "returned NoneType, not an Arrow table"),
    ],
)
def test_a_step_that_does_not_keep_its_promise_stops_the_work(folder: Path, step: str, what: str) -> None:
    rule = rule_of(TABLE, folder, rename={"name": "full_name"}, step=f"steps_of_tests:{step}")
    with pytest.raises(OperatorError, match=what) as caught:
        put_through(rule, T(1, insert("customers", **(ANN | {"name": "s3cret"}))))
    assert "s3cret" not in str(caught.value)
    assert caught.value.where == "table public.customers"


def test_a_text_that_a_step_makes_holds_no_zero_byte(folder: Path) -> None:
    rule = rule_of(TABLE, folder, rename={"name": "full_name"}, step="steps_of_tests:zero")
    fine = ANN | {"name": "fine"}

    made = put_through(
        rule,
        T(1, insert("customers", **fine), insert("customers", **ANN), update("customers", fine, {"name": "x"})),
        T(2, update("customers", fine, {"net": "2.00"}), delete("customers", **ANN)),
    )

    assert [op for op, *_ in made] == ["insert", "gap", "gap", "update", "gap"]
    assert "made a text with a zero byte" in made[1][1]["reason"]


LARGE = ExternalValue.at("7:9:2", 10**7, is_binary=False)
MORE = ExternalValue.appending("more", is_binary=False)


def test_a_value_that_is_not_in_its_image_passes_rules_that_do_not_look_at_it() -> None:
    rule = rule_of(
        TABLE, rename={"name": "text", "tax": "duty"}, drop=["ssn"], rows="region = 'EU'", add={"twice": "net + net"}
    )
    old = {n: v for n, v in ANN.items() if n not in ("name", "ssn")}

    made = put_through(
        rule,
        T(1, insert("customers", **(ANN | {"name": LARGE, "ssn": LARGE}))),
        T(2, update("customers", old, {"name": MORE, "net": "3.00"})),
    )

    kept = {"id": "1", "net": "1.00", "duty": "0.19", "region": "EU", "twice": "2.00"}
    assert made == [
        ("insert", None, kept | {"text": LARGE.told}),
        ("update", kept, {"text": MORE.told, "net": "3.00", "twice": "6.00"}),
    ]


@pytest.mark.parametrize("settings", [{"rows": "name <> ''"}, {"add": {"size": "length(name)"}}], ids=str)
def test_a_rule_that_looks_at_such_a_value_is_refused(settings: Any) -> None:
    rule = rule_of(TABLE, **settings)

    with pytest.raises(OperatorError, match="the value of column 'name' is looked at, and is too large"):
        put_through(rule, T(1, insert("customers", **(ANN | {"name": LARGE}))))
