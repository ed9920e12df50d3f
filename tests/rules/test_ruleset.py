"""Which tables are processed and what they are called; and what is wrong with rules, with its line."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import duckdb
import pytest

from penstock.change import TableName
from penstock.errors import ConfigError, OperatorError
from penstock.pipeline_file import parse
from penstock.rules import duckdb_session
from penstock.rules.ruleset import RuleSet
from penstock.schema import ForeignKey, TableSchema, Unique
from tests.hand_made import T, insert, truncate
from tests.rules.made import CUSTOMERS, TYPES, put_through, rule_of, rule_set, schema
from tests.test_config import GOOD

TABLE = schema(TYPES)


def name(text: str) -> TableName:
    return TableName(*text.split("."))


@pytest.mark.rule("A-16")
@pytest.mark.parametrize(
    ("rules", "taken"),
    [
        ({}, ["public.a", "public.audit_x"]),
        ({"exclude": []}, ["public.a", "public.audit_x"]),
        ({"exclude": ["public.audit_*"]}, ["public.a"]),
        ({"include": []}, []),
        ({"include": [], "exclude": []}, []),
        ({"include": ["public.a*"]}, ["public.a", "public.audit_x"]),
        ({"include": ["public.a*"], "exclude": ["*.audit_?"]}, ["public.a"]),
        ({"include": ["other.*"]}, []),
    ],
    ids=str,
)
def test_the_negative_set_comes_first_and_an_empty_positive_one_takes_nothing(rules: Any, taken: list[str]) -> None:
    found = rule_set(rules, captured=["public.*"])
    assert [text for text in ("public.a", "public.audit_x", "other.a") if found.takes(name(text))] == taken


MAPPED = {
    "exclude": ["*.secret"],
    "tables": {
        "public.*": {"to": "sales.*"},
        "public.customers": {"to": "sales.clients", "drop": ["ssn"]},
        "public.orders": {"drop": ["note"]},
        "hr.*": {"to": "*_copy.x_*"},
        "old.*": {"drop": ["note"]},
        '"odd.one".t?': {"to": '"a.b".*'},
    },
}


CAPTURED = ["public.*", "hr.*", "old.*", "other.*", '"odd.one".*']


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("public.customers", "sales.clients"),
        ("public.orders", "sales.orders"),
        ("public.x", "sales.x"),
        ("hr.people", "hr_copy.x_people"),
        ("old.t", "old.t"),
        ("other.t", "other.t"),
    ],
)
def test_names_lead_to_the_target_and_back(source: str, target: str) -> None:
    rules = pickle.loads(pickle.dumps(rule_set(MAPPED, captured=CAPTURED)))

    assert rules.target_name(name(source)) == name(target)
    # A table public.clients would get that name as well.
    assert rules.source_names(name(target))[0] == name(source)
    assert rules.likely_sources(name(target)) == [name(source)]


def test_a_part_with_a_dot_leads_there_and_back() -> None:
    rules = rule_set(MAPPED, captured=CAPTURED)
    source, target = TableName("odd.one", "t1"), TableName("a.b", "t1")
    assert rules.target_name(source) == target
    assert rules.source_names(target) == [source]
    assert rules.source_names(TableName("a.b", "other")) == []


@pytest.mark.parametrize("target", ["public.x", "sales.secret", "sales.customers", "hr_copy.people"])
def test_a_name_that_no_table_gets_has_no_source(target: str) -> None:
    assert rule_set(MAPPED, captured=CAPTURED).source_names(name(target)) == []


def test_several_tables_may_be_meant_until_they_are_seen() -> None:
    rules = rule_set({"tables": {"public.*": {"to": "sales.*"}}})
    assert set(rules.source_names(name("sales.t"))) == {name("public.t"), name("sales.t")}
    rules.refuse_collisions([name("public.t"), name("sales.u")])
    with pytest.raises(
        ConfigError, match=r"rules\.tables\.public\.\*\.to: public\.t and sales\.t would both be sales\.t"
    ):
        rules.refuse_collisions([name("public.t"), name("sales.t")])
    rule_set({"exclude": ["sales.*"], "tables": {"public.*": {"to": "sales.*"}}}).refuse_collisions(
        [name("public.t"), name("sales.t")]
    )


def test_each_setting_is_taken_from_the_first_entry_that_has_it() -> None:
    rules = rule_set(
        {
            "tables": {
                "public.*": {"to": "sales.*", "rows": "region = 'EU'", "drop": ["net"]},
                "*.customers": {"rename": {"name": "n"}, "drop": ["tax"]},
                "public.customers": {"drop": ["ssn"]},
            }
        }
    )

    rule = rules.rule(TABLE, TABLE)

    assert rule is not None
    assert rule.table.name == name("sales.customers")
    assert rule.table.column_names == ["id", "n", "net", "tax", "region"]
    assert rule.row_filter is not None


@pytest.mark.parametrize("rules", [{}, {"tables": {"public.other": {"drop": ["x"]}}}, {"exclude": ["public.*"]}])
def test_a_table_without_a_rule_passes_as_it_is(rules: Any) -> None:
    assert rule_set(rules).rule(TABLE, TABLE) is None


FILE = (
    GOOD
    + """\
rules:
  exclude: ["public.audit_*"]
  tables:
    public.customers:
      to: sales.clients
      rename: {RENAME}
      drop: [DROP]
      add:
        total: ADD
      rows: >
        ROWS
"""
)


def faults_of(folder: Path = Path(), table: TableSchema = TABLE, **parts: str) -> list[str]:
    text = FILE
    for part, default in {"RENAME": "name: full_name", "DROP": "ssn", "ADD": "net + tax", "ROWS": "id > 1"}.items():
        text = text.replace(part, parts.get(part.lower(), default))
    config = parse(text + parts.get("more", ""), name="p.yaml", environment={})
    assert config.rules is not None
    rules = RuleSet.of(config.rules, config.capture.tables, folder)
    with pytest.raises(ConfigError) as caught:
        rules.rule(table, table)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        (
            {"rows": "regoin = 'EU'"},
            "25: rules.tables.public.customers.rows: table public.customers has no column"
            " 'regoin'; did you mean 'region'?",
        ),
        ({"rows": "region ="}, "25: rules.tables.public.customers.rows: 'region =\\n' is not an SQL expression: "),
        (
            {"rows": "region"},
            "25: rules.tables.public.customers.rows: 'region\\n' is not a condition but a value of type VARCHAR",
        ),
        ({"rows": "net + 'x' > region + 1"}, "25: rules.tables.public.customers.rows: "),
        (
            {"rows": "id IN (SELECT 1)"},
            "25: rules.tables.public.customers.rows: 'id IN (SELECT 1)\\n' holds a subquery",
        ),
        ({"rows": "random() < 0.5"}, "25: rules.tables.public.customers.rows: 'random() < 0.5\\n' calls random()"),
        ({"rows": "true) FROM read_csv('/etc/passwd') t(a"}, "25: rules.tables.public.customers.rows: "),
        ({"add": "now()"}, "24: rules.tables.public.customers.add.total: 'now()' calls now()"),
        ({"add": "current_date"}, "24: rules.tables.public.customers.add.total: current_date does not yield the same"),
        ({"add": "public.net"}, "24: rules.tables.public.customers.add.total: 'public.net': a column is named by its"),
        (
            {"add": "nett"},
            "24: rules.tables.public.customers.add.total: table public.customers has no column 'nett';"
            " did you mean 'net'?",
        ),
        (
            {"add": "'[net]'"},
            "24: rules.tables.public.customers.add.total: '[net]' is of type DECIMAL(10,2)[], which no",
        ),
        ({"add": "nope(net)"}, "24: rules.tables.public.customers.add.total: 'nope(net)': Catalog Error: "),
        (
            {"add": "net", "rename": "name: total"},
            "24: rules.tables.public.customers.add.total: table public.customers has a column 'total' already",
        ),
        (
            {"drop": "ssm"},
            "22: rules.tables.public.customers.drop.0: table public.customers has no column 'ssm'; did you mean 'ssn'?",
        ),
        (
            {"rename": "nmae: x"},
            "21: rules.tables.public.customers.rename.nmae: table public.customers has no column"
            " 'nmae'; did you mean 'name'?",
        ),
        (
            {"rename": "name: net"},
            "21: rules.tables.public.customers.rename.name: two columns of table public.customers"
            " would be called 'net'",
        ),
        ({"rename": "ssn: x"}, "21: rules.tables.public.customers.rename.ssn: column 'ssn' is left out before"),
        (
            {"more": "      keep: [id, nmae]\n"},
            "27: rules.tables.public.customers.keep.1: table public.customers has no"
            " column 'nmae'; did you mean 'name'?",
        ),
        (
            {"more": "      step: no_such_module:f\n"},
            "27: rules.tables.public.customers.step: cannot load 'no_such_module:f': ModuleNotFoundError",
        ),
        (
            {"more": "      step: json:no_such\n"},
            "27: rules.tables.public.customers.step: cannot load 'json:no_such': AttributeError",
        ),
        (
            {"more": "      step: sys:path\n"},
            "27: rules.tables.public.customers.step: cannot load 'sys:path': TypeError",
        ),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_the_table_is_told_with_its_line(parts: Any, fault: str) -> None:
    found = faults_of(**parts)
    assert found[0].startswith(f"p.yaml:{fault}"), found


@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_text('pyproject.toml')",
        "COPY (SELECT 1) TO 'made.csv'",
        "ATTACH 'made.db'",
        "SET enable_external_access = true",
        "SET TimeZone = 'Asia/Tokyo'",
    ],
)
def test_even_a_statement_that_came_through_would_reach_nothing(sql: str) -> None:
    with pytest.raises(duckdb.Error, match=r"(?i)permission|disabled|locked"):
        duckdb_session.session().execute(sql)


def test_all_faults_of_a_table_come_at_once() -> None:
    found = faults_of(drop="a, b", rows="c = 1", add="d")
    assert [line.split(":")[1] for line in found] == ["22", "22", "24", "25"]


def test_names_that_differ_in_case_are_told_apart() -> None:
    table = schema({"id": "integer", "Name": "text", "name": "text", "Extra": "text"})

    made = put_through(
        rule_of(table, keep=["id"], add={"a": '"Name"', "b": "name", "c": "EXTRA"}),
        T(1, insert("customers", id="1", Name="x", name="y", Extra="z")),
    )

    assert made == [("insert", None, {"id": "1", "a": "x", "b": "y", "c": "z"})]
    with pytest.raises(ConfigError, match="two columns that differ only in case"):
        rule_of(table, add={"d": '"Name" || name'})
    with pytest.raises(ConfigError, match="'NAME' may be any of the columns 'Name', 'name'"):
        rule_of(table, rows="NAME = 'x'")


def test_an_earlier_version_need_not_have_what_is_dropped_but_what_a_condition_looks_at() -> None:
    rules = rule_set(
        {"tables": {"public.customers": {"drop": ["ssn"], "rename": {"name": "n"}, "rows": "region = 'EU'"}}}
    )
    without = schema({"id": "integer", "region": "text"})
    bare = schema({"id": "integer"})

    rule, refused = (rules.rule(table, table, is_current=False) for table in (without, bare))

    assert rule is not None
    assert refused is not None
    row = {"id": "1", "region": "EU"}
    assert put_through(rule, T(1, insert("customers", **row))) == [("insert", None, row)]
    assert put_through(refused, T(1, truncate("customers"))) == [("truncate", None, None)]
    with pytest.raises(OperatorError, match=r"earlier version of table public\.customers.*\n.*no column 'region'"):
        put_through(refused, T(2, insert("customers", id="1")))


def test_a_rule_that_leaves_no_column_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves no column"):
        rule_of(schema({"id": "integer"}), drop=["id"])


def test_a_person_is_warned_of_a_key_that_is_dropped_and_operations_that_are_left_out() -> None:
    table = schema(TYPES, primary_key=Unique("k", ("id", "name"), ("id", "name")))
    rules = rule_set({"tables": {"public.customers": {"drop": ["id"], "operations": ["insert", "update"]}}})

    found = rules.warnings(table)

    assert found[0].startswith(
        "rules.tables.public.customers.drop: leaves out 'id' of the primary key of public.customers"
    )
    assert found[1].startswith("rules.tables.public.customers.operations: leaves out each delete")
    assert len(found) == 3
    assert rule_set({"tables": {"public.customers": {"drop": ["ssn"]}}}).warnings(table) == []
    assert rule_set({}).warnings(schema(TYPES, CUSTOMERS)) == []


@pytest.mark.parametrize(
    ("child", "is_warned"),
    [
        ({}, True),
        ({"to": "far.child"}, True),
        ({"rows": "region = 'EU'"}, False),
        ({"drop": ["region"]}, False),
    ],
)
def test_a_person_is_warned_of_children_whose_parents_are_left_out(child: Any, is_warned: bool) -> None:
    key = ForeignKey("by_region", name("public.child"), ("region",), CUSTOMERS, ("region",))
    table = schema(TYPES, name("public.child"), foreign_keys=(key,))
    rules = rule_set({"tables": {"public.customers": {"rows": "region = 'EU'"}, "public.child": child}})

    found = [line for line in rules.warnings(table) if "'by_region'" in line]

    assert bool(found) is is_warned
    assert rule_set({"tables": {"public.child": child}}).warnings(table) == []
