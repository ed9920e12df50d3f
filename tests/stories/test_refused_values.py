"""A value that the target cannot hold is an error of its change: the rest is applied, and the error queue names it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.conftest import lab_between
from tests.installed import InstalledPostgres
from tests.lab import Lab
from tests.program import Program

DATA = Path(__file__).parents[1] / "data" / "refused"

FILE = """\
version: 1
name: lab
connections:
  copy: {type: postgres, url: "${env:COPY_URL}"}
capture:
  source: debezium
  path: events
  tables: ["*.*"]
  debezium:
    prefix: shop
apply:
  connection: copy
"""

Begin = Callable[..., Program]


@pytest.fixture
def begin(tmp_path: Path) -> Begin:
    """Set up a pipeline from files of events, at a target where their table may be there already."""

    def begin(events: str, target: psycopg.Connection, made: str = "", **settings: object) -> Program:
        target.execute(made or "SELECT 1")
        program = Program(tmp_path, "", dsn(target), name="lab")
        text = FILE + "".join(f"  {name}: {value}\n" for name, value in settings.items())
        (tmp_path / "pipeline.yaml").write_text(text)
        (tmp_path / "events").mkdir()
        shutil.copy(DATA / f"{events}.jsonl", tmp_path / "events" / "0001.jsonl")
        done = program("setup")
        assert done.code == 0, done.err
        return program

    return begin


def dsn(connection: psycopg.Connection) -> str:
    info = connection.info
    return f"postgresql://{info.user}@{info.host}:{info.port}/{info.dbname}"


def entries(program: Program) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = program("errors", "list", "--json").json
    return found


NUL = "a text holds a zero byte (NUL), which PostgreSQL does not store: column 'tx' is text at the target"


def test_a_text_with_a_zero_byte_is_an_error_of_its_transaction(lab: Lab, begin: Begin) -> None:
    program = begin("nul-in-text", lab.target)

    done = program("run", "--until-caught-up")

    # The last update expects what the one before it could not set.
    assert done.code == 5, done.err
    assert {one["error_message"] for one in entries(program)} == {NUL}
    assert [(one["table"], one["op"], one["error_number"]) for one in entries(program)] == [
        ("inv.t", "insert", 1722),
        ("inv.t", "update", 1722),
        ("inv.t", "update", 1722),
    ]
    rows = lab.target.execute("SELECT id, tx, js::text FROM inv.t ORDER BY id").fetchall()
    assert rows == [(1, "x", "{}"), (4, "x", '{"a":"x\\u0000y"}'), (5, "x", "{}")]
    assert program("run", "--until-caught-up").code == 5
    assert len(entries(program)) == 3


def test_a_first_copy_names_what_it_cannot_write_and_copies_the_rest_if_told_to(lab: Lab, begin: Begin) -> None:
    program = begin("nul-in-first-copy", lab.target)

    done = program("run", "--until-caught-up")

    assert done.code == 3
    assert f"cannot copy table inv.t: the target refuses a row: {NUL} (key of the table: id)." in done.err
    # No text column could be made to hold it.
    assert "(key of the table: id). Change the value by a rule; or set apply.on_bad_row" in done.err

    file = program.folder / "pipeline.yaml"
    file.write_text(file.read_text() + "  on_bad_row: put_aside\n")
    done = program("run", "--until-caught-up")

    assert done.code == 5, done.err
    assert [(one["table"], one["txn_id"], one["error_number"], one["error_message"]) for one in entries(program)] == [
        ("inv.t", "first copy", 1722, NUL)
    ]
    assert [row[0] for row in lab.rows("inv.t")] == [1, 3, 4]


HSTORE = "CREATE EXTENSION hstore; CREATE SCHEMA inv; CREATE TABLE inv.t (id int PRIMARY KEY, h hstore)"


def test_what_a_types_own_function_does_not_read_is_an_error_of_its_transaction(
    source_server: EmbeddedPostgres, begin: Begin
) -> None:
    with InstalledPostgres() as server, lab_between(source_server, server) as lab:
        program = begin("schemaless-hstore", lab.target, HSTORE, on_bad_row="put_aside")
        file = program.folder / "events" / "0001.jsonl"
        pairs = [json.loads(line) for line in file.read_text().splitlines()]
        for event in pairs:
            event["value"]["after"]["h"] = "no pairs"
        file.write_text("".join(json.dumps(event) + "\n" for event in pairs))

        done = program("run", "--until-caught-up")

        assert done.code == 5, done.err
        assert [(one["table"], one["op"]) for one in entries(program)] == [
            ("inv.t", "snapshot"),
            ("inv.t", "insert"),
        ]
        # The values are in none of its words: the type's own function gives them no SQLSTATE of their own.
        assert {one["error_message"] for one in entries(program)} == {
            "internal error: column 'h' is public.hstore at the target, whose type does not take the value"
        }


def test_pairs_go_into_a_column_of_an_extensions_type_in_whichever_schema(
    source_server: EmbeddedPostgres, begin: Begin
) -> None:
    with InstalledPostgres() as server, lab_between(source_server, server) as lab:
        program = begin("schemaless-hstore", lab.target, HSTORE)

        done = program("run", "--until-caught-up")

        assert done.code == 0, done.err
        rows = lab.target.execute("SELECT id, h::text FROM inv.t ORDER BY id").fetchall()
        assert rows == [(1, '"a"=>"1", "b c"=>NULL'), (2, '"a"=>"1"')]
