"""DDL seen through rules: tables and columns by the names that they have at the target, and renames that do not do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.apply.apply_errors import DDL_NOT_CARRIED_OUT, ApplyError
from penstock.apply.ddl import alteration, is_drop, is_rename, name_before
from penstock.change import Change, Op, TableName
from penstock.rules.ddl import TransformedName, with_names
from penstock.rules.ruleset import RuleSet
from tests.rules.made import rule_set, schema

COLUMNS = {"id": "integer", "v": "integer", "secret": "text"}


def name(text: str) -> TableName:
    return TableName(*text.split("."))


def shape(table: TableName) -> str:
    columns = {n: {"name": column, "type": type_} for n, (column, type_) in enumerate(COLUMNS.items(), start=1)}
    return json.dumps({"schema": table.schema, "name": table.name, "key": [1], "columns": columns})


def ruled(rules: RuleSet, table: TableName) -> TransformedName:
    if not rules.takes(table):
        return TransformedName(called=rules.target_name(table))
    described = schema(COLUMNS, name=table)
    return TransformedName(rules.rule(described, described))


def seen(rules: Any, was: str, now: str | None) -> Change:
    """A rename, or a drop, as it comes out of rules."""
    made = rule_set(rules, captured=["public.*"])
    image = {"was_version": "1", "was": shape(name(was)), "is": None if now is None else shape(name(now))}
    after = TransformedName() if now is None else ruled(made, name(now))
    return Change(0, Op.DDL, made.target_name(name(was)), 1, with_names(image, ruled(made, name(was)), after), None)


@pytest.mark.parametrize(
    ("rules", "was", "now"),
    [
        ({}, "public.t", "public.t2"),
        ({"public.*": {"to": "far.*"}}, "far.t", "far.t2"),
        ({"public.t": {"to": "far.whole"}}, "far.whole", "public.t2"),
        ({"public.t": {"to": "far.whole"}, "public.t2": {"to": "far.whole"}}, "far.whole", None),
        ({"public.t*": {"drop": ["secret"], "rename": {"v": "w"}}}, "public.t", "public.t2"),
    ],
    ids=["none", "a pattern", "the new name has none", "the same name for both", "columns"],
)
@pytest.mark.rule("A-148")
def test_a_rename_is_from_one_name_at_the_target_to_the_other(rules: Any, was: str, now: str | None) -> None:
    change = seen({"tables": rules}, "public.t", "public.t2")

    wanted = alteration(change)

    assert (name_before(change), is_rename(change), is_drop(change)) == (name(was), now is not None, False)
    assert wanted.called == (None if now is None else name(now))
    assert (wanted.renamed, wanted.dropped, wanted.added) == ((), (), ())


def test_a_drop_is_of_the_table_that_the_target_knows() -> None:
    change = seen({"tables": {"public.t": {"to": "far.whole"}}}, "public.t", None)
    assert (name_before(change), is_drop(change), alteration(change).is_drop) == (name("far.whole"), True, True)


@pytest.mark.parametrize(
    ("rules", "was", "why"),
    [
        ({"tables": {"public.t": {"rows": "v > 5"}}}, "public.t", r"rules say something else of it than of public\.t;"),
        ({"tables": {"public.t2": {"drop": ["secret"]}}}, "public.t", "rules say something else"),
        ({"tables": {"public.t": {"rename": {"v": "w"}}}}, "public.t", "rules say something else"),
        ({"tables": {"public.t": {"operations": ["insert"]}}}, "public.t", "rules say something else"),
        ({"tables": {"public.t2": {"add": {"d": "v * 2"}}}}, "public.t", "rules say something else"),
        ({"exclude": ["public.tmp"]}, "public.tmp", r"what was done to it as public\.tmp was left out;"),
    ],
    ids=["rows", "drop", "rename", "operations", "add", "left out before"],
)
def test_a_rename_under_which_rules_say_something_else_is_refused(rules: Any, was: str, why: str) -> None:
    with pytest.raises(ApplyError, match=why) as error:
        alteration(seen(rules, was, "public.t2"))
    assert error.value.number == DDL_NOT_CARRIED_OUT


def test_a_table_that_rules_leave_out_under_its_new_name_is_called_so_all_the_same() -> None:
    rules = {"exclude": ["public.old"], "tables": {"public.*": {"to": "far.*", "rows": "v > 5"}}}
    assert alteration(seen(rules, "public.t", "public.old")).called == name("far.old")


def fitted(rules: Any) -> tuple[dict[str, str | None], tuple[tuple[str, str | None], ...]]:
    """What becomes of fittings that are new, and of a default, under rules: by name, why one has no words."""
    rule = ruled(rule_set(rules, captured=["public.*"]), name("public.t"))
    was = json.loads(shape(name("public.t"))) | {"fittings": []}
    made = json.loads(json.dumps(was))
    made["columns"]["2"]["default"] = "7"
    common = {"is_valid": True, "definition": "", "looks": ""}
    made["fittings"] = [
        {"kind": "index", "name": "of_id", "columns": [1], "has_row": False, **common},
        {"kind": "check", "name": "of_v", "columns": [2], "has_row": False, **common},
        {"kind": "index", "name": "of_secret", "columns": [1, 3], "has_row": False, **common},
        {"kind": "check", "name": "of_row", "columns": [], "has_row": True, **common},
    ]
    image = {"was": json.dumps(was), "is": json.dumps(made)}
    wanted = alteration(Change(0, Op.DDL, name("public.t"), 1, with_names(image, rule, rule), None))
    return {one.name: one.unworded for one in wanted.post_data_added}, wanted.defaults


ROW, NAMES = "it names the row as a whole, which the rules change", "its columns have other names here"


@pytest.mark.parametrize(
    ("rules", "left", "defaults"),
    [
        ({}, dict.fromkeys(("of_id", "of_v", "of_secret", "of_row")), (("v", "7"),)),
        ({"drop": ["secret"]}, {"of_id": None, "of_v": None, "of_row": ROW}, (("v", "7"),)),
        ({"rename": {"v": "w"}}, {"of_id": None, "of_v": NAMES, "of_secret": None, "of_row": ROW}, (("w", "7"),)),
        ({"drop": ["v"]}, {"of_id": None, "of_secret": None, "of_row": ROW}, ()),
    ],
    ids=["none", "drop", "rename", "drop the column itself"],
)
def test_checks_and_indexes_follow_as_far_as_rules_leave_their_columns_alone(
    rules: Any, left: dict[str, str | None], defaults: tuple[tuple[str, str | None], ...]
) -> None:
    assert fitted({"tables": {"public.t": rules}} if rules else {}) == (left, defaults)


def test_a_version_that_told_of_no_checks_and_indexes_is_not_one_that_had_none() -> None:
    was = json.loads(shape(name("public.t")))
    is_ = was | {"fittings": [{"kind": "index", "name": "i", "definition": "", "columns": [1], "has_row": False}]}
    wanted = alteration(Change(0, Op.DDL, name("public.t"), 1, {"was": json.dumps(was), "is": json.dumps(is_)}, None))
    assert (wanted.post_data_added, wanted.post_data_dropped) == ((), ())


@pytest.mark.parametrize(
    ("statement", "is_clear"), [("ALTER TABLE t ALTER v TYPE bigint", True), ("SELECT f()", False)]
)
def test_a_statement_calls_a_renamed_column_as_it_is_at_the_source(statement: str, is_clear: bool) -> None:
    table = name("public.t")
    made = ruled(rule_set({"tables": {"public.t": {"rename": {"v": "w"}}}}, captured=["public.*"]), table)
    was = json.loads(shape(table))
    now = json.loads(shape(table))
    now["columns"]["2"]["type"] = "bigint"
    image = {"was_version": "1", "was": json.dumps(was), "is": json.dumps(now), "statement": statement}

    wanted = alteration(Change(0, Op.DDL, table, 1, with_names(image, made, made), None))

    assert [column.name for column in wanted.retyped] == ["w"]
    assert list(wanted.unclear) == ([] if is_clear else ["w"])


def test_tables_that_inherit_go_by_their_names_at_the_target() -> None:
    table = name("public.t")
    now = json.loads(shape(table)) | {"children": [["public", "c"], ["public", "d"]]}
    image = {"was_version": "1", "was": shape(table), "is": json.dumps(now)}
    called = {name("public.c"): name("far.c2")}

    changed = with_names(image, TransformedName(), TransformedName(), called)

    assert alteration(Change(0, Op.DDL, table, 1, changed, None)).children == {name("far.c2"), name("public.d")}
