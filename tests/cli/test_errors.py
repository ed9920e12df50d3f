"""The error queue at 3 a.m.: what a person sees of it, and does with it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from penstock.apply.error_queue import NoEntryError
from penstock.cli.main import app
from penstock.pipeline.errors import Errors
from tests.lab import Lab
from tests.program import Program, await_true

HOSTILE = 'a\x1b[2Jb\u202e"c'
"""Clears a terminal and turns the direction of writing, if it is printed as it is."""

SHOP = f"""
CREATE TABLE customer (id int PRIMARY KEY, name varchar(20) NOT NULL);
CREATE TABLE account (id int PRIMARY KEY, customer int REFERENCES customer, balance numeric(10,2), note text);
CREATE TABLE "odd {HOSTILE.replace('"', '""')}" (id int PRIMARY KEY, "{HOSTILE.replace('"', '""')}" text);
"""


@pytest.fixture
def queue(lab: Lab) -> list[str]:
    """Three entries: an account whose row differs, a customer who is there already, and a name that is too long."""
    lab.setup(SHOP)
    lab.source.execute("INSERT INTO customer VALUES (1, 'ann'); INSERT INTO account VALUES (1, 1, 100, NULL)")
    lab.apply()
    lab.target.execute("UPDATE account SET balance = 90; INSERT INTO customer VALUES (7, 'in the way')")
    lab.target.execute("ALTER TABLE customer ADD CHECK (name <> 'nobody')")
    with lab.source.transaction():
        lab.source.execute("INSERT INTO customer VALUES (2, 'bob')")
        lab.source.execute("UPDATE account SET balance = 150 WHERE id = 1")
    lab.source.execute("INSERT INTO customer VALUES (7, 'secret')")
    lab.source.execute("INSERT INTO customer VALUES (8, 'nobody')")
    lab.apply()
    return [entry.id for entry in lab.errors()]


def balance(lab: Lab) -> float:
    row = lab.target.execute("SELECT balance FROM account WHERE id = 1").fetchone()
    assert row is not None
    return float(row[0])


def editor(folder: Path, code: str) -> dict[str, str]:
    """An editor that does to its file what the code says; it has the file's text as `text`."""
    script = folder / "editor.py"
    script.write_text(
        "import json, pathlib, sys\nfile = pathlib.Path(sys.argv[-1])\ntext = file.read_text()\n"
        f"{code}\nfile.write_text(text)\n"
    )
    return {"EDITOR": f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}", "VISUAL": "", "TMPDIR": str(folder)}


def test_entries_are_found_by_what_they_have_in_common(lab: Lab, program: Program, queue: list[str]) -> None:
    account, taken, nobody = queue

    def listed(*options: str) -> list[str]:
        return [entry["id"] for entry in program("errors", "list", "--json", *options).json]

    assert listed() == queue
    assert listed("--table", "public.acc*") == [account]
    # A table that another change of the transaction is of.
    assert listed("--table", "public.customer") == queue
    assert listed("--error", "26786", "--error", "23514") == [account, nobody]
    assert listed("--error", "1", "--text", "DUPLICATE") == [taken]
    assert listed("--since", "2020-01-01", "--until", "2999-01-01T00:00:00+02:00") == queue
    assert listed("--until", "2020-01-01") == []
    assert "no entry of the error queue fits" in program("errors", "list", "--until", "2020-01-01").out
    wrong = program("errors", "list", "--since", "yesterday")
    assert (wrong.code, "--since must be a time" in wrong.err) == (2, True)
    types = [entry["error_type"] for entry in program("errors", "list", "--json").json]
    assert types == ["conflict", "conflict", "value"]


@pytest.mark.rule("A-141")
def test_an_entry_is_shown_beside_the_rows_that_are_there_now(lab: Lab, program: Program, queue: list[str]) -> None:
    shown = program("errors", "show", queue[0])
    as_json = program("errors", "show", queue[0], "--json").json

    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert "1 insert public.customer" in lines
    assert "-> 2 update public.account" in lines
    assert "column old new now" in lines
    assert "! balance '100.00' '150.00' '90.00'" in lines
    assert "note NULL NULL" in lines
    assert "the target holds no row with its key now" in lines
    inserted, updated = as_json["changes"]
    assert (inserted["number"], inserted["now"], inserted["differing"]) == (1, None, [])
    assert updated["now"] == {"id": "1", "customer": "1", "balance": "90.00", "note": None}
    assert updated["differing"] == ["balance"]
    assert as_json["recipient"] == "postgres"
    in_the_way = program("errors", "show", queue[1], "--json").json["changes"][0]["in_the_way"]
    assert in_the_way == {"customer_pkey": {"id": "7", "name": "in the way"}}


def test_an_entry_is_mended_by_options_tried_first_and_applied_then(
    lab: Lab, program: Program, queue: list[str]
) -> None:
    edit = ("errors", "edit", queue[0], "--set", "2.before.balance=90.00", "--null", "2.before.note", "--skip", "1")

    tried = program(*edit, "--dry-run")
    assert (tried.code, balance(lab)) == (0, 90)
    assert tried.out.splitlines()[-1] == "would apply 1 transaction from the error queue"
    done = program(*edit, "--json")

    assert done.code == 0, done.err
    assert done.json == {
        "applied": [queue[0]],
        "failed": [],
        "gone": [],
        "edits": {queue[0]: ["1", "2.before.balance"]},
        "held": [],
        "on_hold": [],
        "went_on": [],
    }
    assert balance(lab) == 150
    assert lab.target.execute("SELECT FROM customer WHERE id = 2").rowcount == 0
    history = program("errors", "history", "--json").json
    assert [(one["action"], one["outcome"], one["edits"]) for one in history] == [
        ("dry run", "would apply", ["1", "2.before.balance"]),
        ("edit", "applied", ["1", "2.before.balance"]),
    ]
    assert {one["db_user"] for one in history} == {"postgres"}
    assert all(one["os_user"] and one["host"] for one in history)
    (line,) = [row for row in program("errors", "history").out.splitlines() if "\tedit\t" in row]
    assert line.split("\t")[3:] == [queue[0], "applied", "1 2.before.balance", "", ""]


def test_an_entry_is_mended_in_an_editor(lab: Lab, program: Program, queue: list[str], tmp_path: Path) -> None:
    mend = editor(tmp_path, """text = text.replace('"balance": "100.00"', '"balance": "90.00"')""")

    done = program("errors", "edit", queue[0], env=mend)

    assert done.code == 0, done.err
    assert "edited, or left out: 2.before.balance" in done.out
    assert balance(lab) == 150
    # What was written holds row values: it goes.
    assert not list(tmp_path.glob("penstock-*"))


@pytest.mark.rule("A-138")
def test_what_was_written_in_an_editor_is_kept_where_it_does_not_do(
    lab: Lab, program: Program, queue: list[str], tmp_path: Path
) -> None:
    wrong = editor(tmp_path, """text = text.replace('"balance": "100.00"', '"balance": "80.00"')""")

    failed = program("errors", "edit", queue[0], env=wrong)

    assert failed.code == 3
    assert "still cannot be applied" in failed.err
    (kept,) = tmp_path.glob("penstock-*/*.json")
    assert str(kept) in failed.err
    assert kept.parent.stat().st_mode & 0o077 == 0
    kept.write_text(kept.read_text().replace('"80.00"', '"90.00"'))
    again = program("errors", "edit", queue[0], "--from", str(kept), "--json")
    assert again.json["applied"] == [queue[0]], again.err


EDITORS = {
    "fails": ("sys.exit(7)", 3, "ended with 7; nothing was applied"),
    "is not there": ("", 3, "cannot start the editor '/no/such/editor'"),
    "leaves it as it is": ("", 0, ""),
    "leaves no JSON": ("text = '{'", 2, "the form is not JSON"),
    "leaves nothing that can be read": ("file.write_bytes(b'\\xff'); sys.exit(0)", 3, "cannot be read as UTF-8"),
    "removes it": ("file.unlink(); sys.exit(0)", 3, "cannot be read"),
}


@pytest.mark.parametrize("case", EDITORS)
def test_an_editor_that_gives_nothing_to_apply(
    lab: Lab, program: Program, queue: list[str], tmp_path: Path, case: str
) -> None:
    code, exit_code, said = EDITORS[case]
    environment = editor(tmp_path, code)
    if case == "is not there":
        environment["EDITOR"] = "/no/such/editor"

    done = program("errors", "edit", queue[0], env=environment)

    assert done.code == exit_code, done.err
    assert said in done.err
    assert balance(lab) == 90
    assert [entry.id for entry in lab.errors()] == queue
    assert ("nothing was edited" in done.out) == (exit_code == 0)


def test_what_is_shown_as_json_can_be_edited_and_given_back(
    lab: Lab, program: Program, queue: list[str], tmp_path: Path
) -> None:
    shown = program("errors", "show", queue[0], "--json").out
    form = tmp_path / "form.json"
    form.write_text(shown.replace('"balance": "100.00"', '"balance": "90.00"'))

    done = program("errors", "edit", queue[0], "--from", str(form))

    assert done.code == 0, done.err
    assert balance(lab) == 150
    assert "cannot read --from" in program("errors", "edit", queue[1], "--from", "nothing.json").err
    two = program("errors", "edit", queue[1], "--from", str(form), "--skip", "1")
    assert (two.code, "edit in one way only" in two.err) == (2, True)


@pytest.mark.rule("A-138")
def test_a_function_beside_the_pipeline_file_mends_many(
    lab: Lab, program: Program, queue: list[str], tmp_path: Path
) -> None:
    (tmp_path / "my_module.py").write_text(
        "from dataclasses import replace\n\n"
        "def fix(change, entry, number):\n"
        "    if change.after and change.after.get('name') == 'nobody':\n"
        "        return replace(change, after={**change.after, 'name': 'somebody'})\n"
        "    return None if change.op == 'insert' and change.after['id'] == '7' else change\n\n"
        "def fail(change, entry, number):\n    raise ValueError('secret')\n"
    )
    failed = program("errors", "retry", "--all", "--with", "my_module:fail")
    assert (failed.code, "secret" in failed.err) == (3, False)
    unknown = program("errors", "retry", "--all", "--with", "my_module:mand")
    assert (unknown.code, "cannot load 'my_module:mand'" in unknown.err) == (2, True)

    done = program("errors", "retry", "--error", "1", "--error", "23514", "--with", "my_module:fix", "--json")

    assert done.code == 0, done.err
    assert done.json["applied"] == queue[1:]
    assert done.json["edits"] == {queue[1]: ["1"], queue[2]: ["1.after.name"]}
    assert lab.target.execute("SELECT name FROM customer WHERE id = 8").fetchone() == ("somebody",)


def test_a_retry_goes_on_past_failures_and_says_what_came_of_each(lab: Lab, program: Program, queue: list[str]) -> None:
    lab.target.execute("DELETE FROM customer WHERE id = 7")

    tried = program("errors", "retry", "--all", "--dry-run")
    assert (tried.code, len(lab.errors())) == (3, 3)
    assert [line.split(": ")[:2] for line in tried.out.splitlines()[:3]] == [
        [queue[0], "would fail"],
        [queue[1], "would apply"],
        [queue[2], "would fail"],
    ]
    done = program("errors", "retry", "--all", "--go-on", "--json")

    assert done.code == 3
    assert done.json["applied"] == [queue[1]]
    assert [one["id"] for one in done.json["failed"]] == [queue[0], queue[2]]
    assert done.json["failed"][0]["message_number"] == 2
    assert "secret" not in done.err + tried.out + tried.err
    assert [entry.id for entry in lab.errors()] == [queue[0], queue[2]]


@pytest.mark.rule("A-140")
def test_entries_are_given_up_by_what_they_have_in_common(lab: Lab, program: Program, queue: list[str]) -> None:
    unclear = program("errors", "delete", queue[0], "--all")
    assert (unclear.code, "name the transactions by ids" in unclear.err) == (2, True)
    unasked = program("errors", "delete", "--table", "public.account")
    assert (unasked.code, "Say --yes" in unasked.err) == (2, True)
    unknown = program("errors", "delete", queue[0], "99")
    assert (unknown.code, "no transaction '99' in the error queue" in unknown.err) == (3, True)
    assert len(lab.errors()) == 3

    assert program("errors", "delete", "--error", "1", "--yes", "--json").json == {"deleted": [queue[1]], "on_hold": []}
    assert program("errors", "delete", "--all", "--yes").out == "deleted 2 transactions, never to be applied\n"

    assert lab.errors() == []
    assert balance(lab) == 90
    history = program("errors", "history", "--json", "--limit", "2").json
    assert [(one["action"], one["entry_id"]) for one in history] == [("delete", queue[0]), ("delete", queue[2])]
    assert program("errors", "history", queue[1]).out.count("\tdelete\t") == 1


def test_an_entry_on_hold_is_skipped_until_it_is_released(lab: Lab, program: Program, queue: list[str]) -> None:
    account, taken, nobody = queue
    assert program("errors", "hold", account).code == 2
    assert program("errors", "hold", account, "--note", f"ask {HOSTILE}").out == "put 1 transaction on hold\n"

    # What is shown.
    (listed, *others) = program("errors", "list", "--json").json
    assert (listed["on_hold"]["note"], listed["state"]) == (f"ask {HOSTILE}", "failed")
    assert [other["on_hold"] for other in others] == [None, None]
    assert [entry["id"] for entry in program("errors", "list", "--on-hold", "--json").json] == [account]
    assert "\tfailed, on hold\t" in program("errors", "list").out
    (shown,) = [line for line in program("errors", "show", account).out.splitlines() if line.startswith("on hold")]
    assert "\x1b" not in shown
    assert "by postgres (" in shown
    assert ": ask a" in shown
    status = program("status")
    assert "3 transactions; 1 on hold" in status.out
    assert program("status", "--json").json["on_hold"] == 1
    assert "3 transactions, 1 of them on hold" in program("status", "--check", "--max-lag", "9999").out

    # One that is named is refused, and all others with it.
    for command in (["retry"], ["delete"], ["edit", "--skip", "2"]):
        names = [taken, account] if command != ["edit", "--skip", "2"] else [account]
        refused = program("errors", *command, *names)
        assert (refused.code, f"is on hold: {account} " in refused.err) == (3, True), command
        assert "ask" not in refused.err
    assert [entry.id for entry in lab.errors()] == queue

    # All are all others.
    lab.target.execute("DELETE FROM customer WHERE id = 7")
    retried = program("errors", "retry", "--all", "--go-on")
    assert (retried.code, retried.out.splitlines()[-1]) == (
        3,
        "applied 1 transaction from the error queue; 1 failed again (error 2290); skipped 1 on hold",
    )
    assert program("errors", "retry", "--all", "--dry-run", "--json").json["on_hold"] == [account]
    assert program("errors", "hold", "--all", "--note", "both", "--json").json == {
        "on_hold": [nobody],
        "skipped": [account],
    }
    assert program("errors", "release", nobody).out == "released 1 transaction\n"
    deleted = program("errors", "delete", "--all", "--yes")
    assert deleted.out == "deleted 1 transaction, never to be applied; skipped 1 on hold\n"
    assert program("errors", "delete", "--all", "--yes").out.startswith("deleted 0 transactions")

    # Released, it is like any other.
    assert program("errors", "release", "--all", "--json").json == {"released": [account]}
    lab.target.execute("UPDATE account SET balance = 100")
    assert program("errors", "retry", account).code == 0
    history = program("errors", "history", account, "--json").json
    assert [(one["action"], one["outcome"], one["note"]) for one in history] == [
        ("hold", "on hold", f"ask {HOSTILE}"),
        ("release", "released", None),
        ("retry", "applied", None),
    ]


def test_hostile_names_and_values_are_shown_as_what_they_are(lab: Lab, program: Program) -> None:
    lab.setup(SHOP)
    table = f"odd {HOSTILE}".replace('"', '""')
    lab.source.execute(f'INSERT INTO "{table}" VALUES (1, %s)', ["v\x1b[2J\n-> 9 delete\t" + "w" * 100])
    lab.target.execute(f'INSERT INTO "{table}" VALUES (1, %s)', ["\x07"])
    lab.apply()
    (entry,) = lab.errors()

    for words in (("list",), ("show", entry.id), ("retry", entry.id), ("history",)):
        said = program("errors", *words)
        text = said.out + said.err
        assert "\x1b" not in text.replace("\x1b[33m", "").replace("\x1b[0m", ""), words
        assert not {"\u202e", "\x07"} & set(text), words
    shown = program("errors", "show", entry.id)
    assert "-> 9" not in [line.strip()[:4] for line in shown.out.splitlines()]
    assert "... (118 characters)" in shown.out
    as_json = program("errors", "show", entry.id, "--json").json
    assert as_json["changes"][0]["after"][HOSTILE].endswith("w" * 100)
    # A name that no option can say goes by a form; one without `=` goes by an option.
    edited = program("errors", "edit", entry.id, "--set", "1.after.id=2")
    assert edited.code == 0, edited.err


@pytest.mark.rule("A-137")
def test_a_retry_that_is_killed_leaves_the_entry_and_applies_nothing(
    lab: Lab, program: Program, queue: list[str]
) -> None:
    lab.target.execute("UPDATE account SET balance = 100")
    with psycopg.connect(lab.target_url) as other:
        other.execute("SELECT FROM account FOR UPDATE")
        with program.start("errors", "retry", queue[0]) as retrying:
            await_true(lambda: is_waiting(lab))
            retrying.kill()
        assert is_waiting(lab)
    await_true(lambda: not sessions(lab))

    assert balance(lab) == 100
    assert [entry.id for entry in lab.errors()] == queue
    assert program("errors", "history").out == "nothing was done yet\n"
    assert program("errors", "retry", queue[0]).code == 0
    assert balance(lab) == 150


def is_waiting(lab: Lab) -> bool:
    return lab.target.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount > 0


def sessions(lab: Lab) -> int:
    return lab.target.execute("SELECT FROM pg_stat_activity WHERE application_name LIKE 'penstock % retry'").rowcount


def test_many_that_fail_alike_are_counted(lab: Lab, program: Program) -> None:
    lab.setup(SHOP)
    lab.source.execute("INSERT INTO customer SELECT n, 'ann' FROM generate_series(1, 60) n")
    lab.apply()
    lab.target.execute("DELETE FROM customer WHERE id > 1")
    lab.target.execute("UPDATE customer SET name = 'secret'")
    lab.source.execute(
        "DO $$BEGIN FOR i IN 1..60 LOOP UPDATE customer SET name = 'b' WHERE id = i; COMMIT; END LOOP; END$$"
    )
    lab.apply()
    first, second, *_, last = [entry.id for entry in lab.errors()]

    tried = program("errors", "retry", "--all", "--go-on")
    assert tried.code == 3
    *told, summed_up = tried.out.splitlines()
    assert [line.split(":")[0] for line in told] == [first, second]
    assert summed_up == (
        "applied 0 transactions from the error queue; 60 failed again"
        " (59: error 26787 public.customer, 1: error 26786 public.customer)"
    )
    some = program("errors", "retry", "--error", "26787", "--go-on")
    assert some.out.splitlines()[-1].endswith("; 59 failed again (all: error 26787 public.customer)")

    shown = program("errors", "list", "--limit", "5").out
    assert shown.count("update public.customer") == 5
    assert "and 55 more; --summary counts them by error and table" in shown
    assert len(program("errors", "list", "--json").json) == 60
    assert len(program("errors", "list", "--json", "--limit", "7").json) == 7
    in_short = program("errors", "list", "--summary", "--json").json
    assert [(row["entries"], row["error_number"], row["table"], row["op"]) for row in in_short] == [
        (59, 26787, "public.customer", "update"),
        (1, 26786, "public.customer", "update"),
    ]
    assert (in_short[0]["first_id"], in_short[0]["last_id"]) == (second, last)
    assert "59" in program("errors", "list", "--summary").out

    # A copy that holds them already: one note for all.
    lab.target.execute(
        "INSERT INTO penstock.held (process, error_id, schema_name, table_name)"
        " SELECT process, id, 'public', 'customer' FROM penstock.error"
    )
    left_out = program("errors", "retry", "--all")
    assert left_out.code == 0
    first_note, others = left_out.err.splitlines()
    assert first_note.startswith(f"note: {first}: 1 of its changes is left out: public.customer")
    assert others.startswith("note: 59 more entries: 1 of its changes is left out: public.customer")


@pytest.mark.parametrize("command", ["retry", "delete"])
def test_an_entry_that_another_session_takes_while_all_are_read_is_passed_by(
    lab: Lab, program: Program, queue: list[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    lab.target.execute("UPDATE account SET balance = 100; DELETE FROM customer WHERE id = 7")
    lab.target.execute("ALTER TABLE customer DROP CONSTRAINT customer_name_check")
    listed = Errors.entries

    def entries(self: Errors, *given: Any) -> Any:
        found = listed(self, *given)
        lab.target.execute("DELETE FROM penstock.error WHERE id = %s", [queue[1].rpartition(".")[2]])
        return found

    monkeypatch.setattr(Errors, "entries", entries)
    more = ["--all", "--json", "--file", str(program.folder / "pipeline.yaml")]
    given = [*more, "--yes"] if command == "delete" else more
    done = CliRunner().invoke(app, ["errors", command, *given], env=program.environment)

    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    left = [queue[0], queue[2]]
    if command == "delete":
        assert said == {"deleted": left, "on_hold": []}
    else:
        assert (said["applied"], said["failed"], said["gone"]) == (left, [], [queue[1]])
    assert lab.errors() == []
    # A name that a person gives is still one that has to be there.
    named = ["errors", command, queue[1], *given[1:]]
    refused = CliRunner().invoke(app, named, env=program.environment)
    assert isinstance(refused.exception, NoEntryError)
