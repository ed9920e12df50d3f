"""Properties as settings of a pipeline file: each has a counterpart, a reason or a place in a list."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, OperatorError, PenstockError
from penstock.xmlblaster.known_keys import KNOWN_KEYS
from penstock.xmlblaster.source_half import Options
from tests.xmlblaster.old_files import draft_of, read, watcher, writer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/from-xmlblaster.md").read_text(encoding="utf-8")


def test_a_table_is_found_by_the_schema_of_its_key_or_of_the_url() -> None:
    draft = draft_of(
        "db.url=jdbc:postgresql://h/d?currentSchema=sales\ndb.user=APP\ntable.ORDERS=\ntable.${db.user}.LINES=\n"
        'table.d.other.T=\ntable.s.a"b=\ntables.x.Y=actions=ui\ntable.s2.*=actions=I'
    )

    tables = ["sales.orders", "app.lines", "other.t", 's."a""b"', "s2.*", "x.y"]
    assert draft.settings["capture"]["tables"] == tables
    assert draft.settings["rules"]["tables"] == {"x.y": {"operations": ["insert", "update"]}}
    assert any("tables.*" in check for check in draft.checks)


@pytest.mark.parametrize(
    ("value", "operations"),
    [
        ("", None),
        ("trigger=X", None),
        ("actions=DUI", None),
        ("sequence=1,actions=I", ["insert"]),
        ("actions = ud , trigger=T", ["update", "delete"]),
    ],
)
def test_actions_are_the_operations_that_reach_the_target(value: str, operations: list[str] | None) -> None:
    rules = draft_of(watcher(f"table.s.u={value}")).settings.get("rules", {"tables": {}})
    assert rules["tables"].get("s.u") == (None if operations is None else {"operations": operations})


def test_actions_beside_all_tables_of_a_schema_are_said_to_have_no_effect() -> None:
    draft = draft_of(watcher("table.a.*=actions=I", "table.a.none=actions=", "table.b.*=actions=UDI"))

    said = [check for check in draft.checks if "has no effect" in check]
    assert [check.partition(":")[0] for check in said] == ["table.a.*"]
    assert draft.settings["capture"]["tables"] == ["s.t", "a.*", "b.*"]
    # It is called not captured.
    assert [name for name in draft.settings["rules"]["exclude"] if "repl_" not in name and "dbinfo" not in name] == [
        "a.none"
    ]


@pytest.mark.parametrize(
    ("first", "second", "operations"), [("I", "D", ["insert", "delete"]), ("I", "IUD", None), ("IUD", "U", None)]
)
def test_two_keys_of_one_table_have_the_actions_of_both(first: str, second: str, operations: list[str] | None) -> None:
    draft = draft_of(watcher(f"table.s.U=actions={first}", f"table.s.u=actions={second}"))

    rules = draft.settings.get("rules", {"tables": {}})
    assert rules["tables"].get("s.u") == (None if operations is None else {"operations": operations})
    assert any("another key names" in check for check in draft.checks)


@pytest.mark.parametrize(("path", "schema"), [("Sales,public", "sales"), ('"Sales"', "Sales"), ("", "public")])
def test_the_schema_of_the_url_is_folded_as_the_server_does(path: str, schema: str) -> None:
    draft = draft_of(f"db.url=jdbc:postgresql://h/d?currentSchema={path}\ndb.user=u\ntable.t=")
    assert draft.settings["capture"]["tables"] == [f"{schema}.t"]


def test_names_and_values_that_are_not_understood_are_reported() -> None:
    draft = draft_of(
        watcher(
            "table.a.b.c.d=",
            "table.*=",
            "table.${nobody}.t=",
            "table.s.*x=",
            "table.s.u=trigger=actions=IDU,FOO,sequence=10",
            "foo.bar=1",
        )
    )
    (unknown,) = draft.unknown.values()
    assert [note.partition(":")[0] for note in unknown] == [
        "table.a.b.c.d",
        "table.*",
        "table.${nobody}.t",
        "table.s.*x",
        "table.s.u",
        "table.s.u",
        "foo.bar",
    ]


def test_the_most_specific_name_of_the_mapper_wins() -> None:
    mapped = writer(
        *(
            f"replication.mapper.{line}"
            for line in (
                "schema.S=s9",
                "table.T=t1",
                "table.S.U=u1",
                "column.T.A=a1",
                "column.T.B=b1",
                "column.S.T.A=a2",
                "column.C=c1",
                "column.c.s.t.d=d1",
                "excludeColumn.S.T.B=1",
                "excludeColumn.T.B=1",
                "table.X.Y=a.b",
                "view.X=y",
                "tables=a=b",
                "class=org.example.Mine",
            )
        )
    )
    draft = draft_of(watcher(), mapped)

    assert draft.settings["rules"]["tables"] == {
        "s.u": {"to": "s9.u1"},
        "s.t": {"drop": ["b"], "rename": {"a": "a2"}, "to": "s9.t1"},
        "*.t": {"to": "*.t1", "rename": {"a": "a1", "b": "b1"}},
        "s.*": {"to": "s9.*"},
    }
    told = ["class", "tables", "column.C", "column.c.s.t.d", "excludeColumn.T.B", "table.X.Y"]
    assert [key for key in draft.remarks["2.properties"] if "mapper" in key] == [
        f"replication.mapper.{n}" for n in told
    ]
    assert draft.unknown["2.properties"] == ["replication.mapper.view.X"]


def test_columns_to_search_by_are_a_key_of_the_target_s_table() -> None:
    searched = [
        "replication.searchable.T1=a",
        "replication.searchable.other=b, c",
        "replication.searchable.x.y=d",
        "replication.searchable.c.x.y=e",
    ]
    draft = draft_of(watcher(), writer("replication.mapper.table.s.T=t1", *searched))

    keys = {name: table["key"] for name, table in draft.settings["apply"]["tables"].items()}
    assert keys == {"s.t1": ["a"], "public.other": ["b", "c"], "x.y": ["d"]}
    assert draft.unknown["2.properties"] == ["replication.searchable.c.x.y"]


@pytest.mark.parametrize(
    ("lines", "ddl", "is_asked"),
    [
        (["", ""], "apply", False),
        (["", "replication.creates=false\nreplication.drops=false\nreplication.alters=false"], "ignore", False),
        (["", "replication.drops=FALSE"], "ignore", True),
        (["replication.createDropAlterDetection=false", "replication.drops=true"], "ignore", False),
    ],
)
def test_ddl_is_followed_unless_a_property_says_otherwise(lines: list[str], ddl: str, is_asked: bool) -> None:
    draft = draft_of(watcher(lines[0]), writer(lines[1]))
    assert draft.settings["apply"]["ddl"] == ddl
    assert any("apply.ddl" in check for check in draft.checks) == is_asked


@pytest.mark.parametrize(("value", "changes_of"), [("true", "users"), ("false", "everything")])
def test_a_loop_that_was_blocked_stays_blocked(value: str, changes_of: str) -> None:
    draft = draft_of(watcher(f"replication.blockLoop={value}"))
    assert draft.settings["capture"]["changes_of"] == changes_of


def test_without_a_url_or_a_prefix_the_file_says_what_to_set() -> None:
    draft = draft_of("table.s.t=\ndb.user=u\ndb.password=s3cret")

    assert draft.settings["name"] == "repl"
    assert draft.settings["connections"]["source"]["url"] == "${env:SOURCE_URL}"
    assert set(draft.variables) == {"SOURCE_URL"}
    assert "s3cret" not in draft.text("heading")


def test_a_property_of_the_other_side_is_known_and_has_no_effect() -> None:
    draft = draft_of(watcher("replication.creates=false"), writer("replication.blockLoop=true", "replication.prefix="))

    assert draft.unknown == {}
    assert draft.settings["apply"]["ddl"] == "apply"
    assert "changes_of" not in draft.settings["capture"]
    assert draft.remarks["2.properties"]["replication.blockLoop"].endswith("(a property of a DbWatcher)")
    assert draft.settings["name"] == "repl"


def test_of_two_prefixes_the_watcher_s_is_used_and_the_other_is_named() -> None:
    draft = draft_of(writer("replication.prefix=B_"), watcher("replication.prefix=a_"))
    assert draft.settings["name"] == "a"
    assert any("replication.prefix differs" in check for check in draft.checks)


def test_a_line_break_in_a_key_ends_no_comment_and_begins_no_setting() -> None:
    text = draft_of(watcher("a\\nname\\:\\ evil=1", "replication.prefix=X\\nname: evil")).text("heading")
    assert read(text)["name"] == "x_name__evil"
    assert text.count("\nname:") == 1


@pytest.mark.parametrize("name", ["a\\nname\\: evil", "a'b", 'a"b', "a\\: b", "a,b]", "\\u0007", "#a", "*a"])
def test_any_name_is_read_back_as_it_was(name: str) -> None:
    key = name.replace(" ", "\\ ")
    draft = draft_of(watcher(f"table.s.{key}=actions=I"), writer(f"replication.searchable.t={name}"))
    assert read(draft.text("heading")) == draft.settings


def test_a_secret_that_another_property_refers_to_stays_a_reference() -> None:
    draft = draft_of(watcher("db.password=s3cret", "table.${db.password}.t=", "mom.topicName=${db.password}"))
    assert "s3cret" not in draft.text("heading")


@pytest.mark.parametrize(
    ("texts", "options", "kind", "said"),
    [
        (["table.s.t=\ndb.url=jdbc:oracle:thin:scott/s3cret@h"], {}, OperatorError, "oracle"),
        (["table.s.t=\ndb.url=jdbc:s3cret:x"], {}, OperatorError, "another database"),
        ([writer("db.url=jdbc:oracle:thin:@h:1:X")], {}, OperatorError, "applied to PostgreSQL only"),
        (["table.s.t=\ndb.url=s3cret"], {}, ConfigError, "not a JDBC url"),
        (["table.s.t=\ndb.url=jdbc:postgresql://u:s3cret@h/d"], {}, ConfigError, "cannot be read"),
        (["table.s.t=\ndb.url=jdbc:postgresql://h/${name}"], {}, ConfigError, "a variable"),
        (["table.s.t=\ndb.url=jdbc:postgresql://h/d;password=s3cret"], {}, ConfigError, "cannot be read"),
        ([watcher("replication.version=${env:HOME}")], {}, ConfigError, "a variable"),
        (["changeDetector.class=x"], {}, ConfigError, "no property names a table"),
        (["table.s.t=actions=IX"], {}, ConfigError, "'X'"),
        ([watcher("replication.blockLoop=s3cret")], {}, ConfigError, "neither true nor false"),
        ([watcher(), watcher()], {}, ConfigError, "both of a DbWatcher"),
        ([watcher("dbWriter.writer.class=x")], {}, ConfigError, "only one db.url"),
        (["db.user=u"], {}, ConfigError, "no property tells"),
        (["db.user=u", "db.user=u"], {}, ConfigError, "no property tells"),
        ([writer()], {"documented": True}, ConfigError, "--documented"),
        ([watcher(), writer()], {"kafka": "k:1"}, ConfigError, "--kafka"),
        (["a=${b}\nb=${a}"], {}, ConfigError, "in a circle"),
    ],
)
def test_what_cannot_be_done_is_refused_without_a_value(
    texts: list[str], options: dict[str, Any], kind: type[PenstockError], said: str
) -> None:
    with pytest.raises(kind) as refused:
        draft_of(*texts, options=Options(**options))
    assert said in str(refused.value)
    assert refused.value.do
    assert "s3cret" not in str(refused.value)


def test_the_second_of_two_files_need_not_tell_its_side() -> None:
    draft = draft_of("db.url=jdbc:postgresql://h/d", watcher())
    assert list(draft.settings["connections"]) == ["source", "target"]


KEYS = [line.split() for line in (ROOT / "tests/data/xmlblaster" / "keys.txt").read_text().splitlines()]
"""Side and key of every property of xmlBlaster's replication that is documented, or that its classes read."""

FLAGS = {
    "replication.sendInitialTableContent", "replication.createDropAlterDetection", "replication.blockLoop",
    "replication.creates", "replication.drops", "replication.alters", "replication.nirvanaClient",
    "replication.sendUnchangedUpdates",
}  # fmt: skip

VALUES = {
    "db.url": "jdbc:postgresql://h/d", "replication.maxRowsOnCreate": "9", "replication.maxRowsInTx": "9",
    "dbWatcher.maxCollectedStatements": "9",
    "mom.compressSize": "9", **dict.fromkeys(FLAGS, "false"),
}  # fmt: skip


@pytest.mark.parametrize(("side", "base", "other"), [("source", watcher, writer), ("sink", writer, watcher)])
@pytest.mark.parametrize("is_pair", [False, True], ids=["alone", "as a pair"])
def test_every_documented_property_is_understood(side: str, base: Any, other: Any, is_pair: bool) -> None:
    for key in (key for of, key in KEYS if of == side):
        draft = draft_of(base(f"{key}={VALUES.get(key, 'v')}"), *([other()] if is_pair else []))

        assert draft.unknown == {}, key
        assert key in {**draft.written.get("1.properties", {}), **draft.remarks.get("1.properties", {})}, key


def test_how_messages_are_written_comes_along() -> None:
    lines = ["replication.version=1.4", "replication.maxRowsInTx=7", "replication.sendUnchangedUpdates=false"]
    draft = draft_of(watcher(*lines, "mom.compressSize=100"), options=Options(kafka="k:1"))
    written = {"version": "1.4", "max_rows": 7, "send_unchanged_updates": False, "compress_size": 100}
    assert draft.settings["publish"]["dbwatcher"] == written
    assert (
        draft_of(watcher(*lines), options=Options(documented=True)).settings["capture"]["documented"]["version"]
        == "1.4"
    )
    assert "dbwatcher" not in draft_of(watcher("mom.compressSize=100")).settings["publish"]
    for collected, wanted in (("50", 50), ("1", 1), ("0", 1)):
        one = draft_of(watcher(f"dbWatcher.maxCollectedStatements={collected}"))
        assert one.settings["publish"]["dbwatcher"] == {"collect_transactions": wanted}
    with pytest.raises(ConfigError, match=r"replication\.maxRowsInTx is not a whole number"):
        draft_of(watcher("replication.maxRowsInTx=many"))


def test_the_page_on_moving_over_has_every_property() -> None:
    assert [known.pattern for known in KNOWN_KEYS if f"`{known.pattern}`" not in PAGE] == []
    for _, key in KEYS:
        named = re.sub(r"(\.s|\.s\.t|\.s\.t\.c)$", ".", key)
        assert f"`{named}" in PAGE or any(known.matches(key) for known in KNOWN_KEYS), key
