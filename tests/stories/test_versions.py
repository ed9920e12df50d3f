"""Ledgers and capture sets of every version: upgraded with all they hold, or refused with what to do."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.apply.ledger import ProcessStatus
from penstock.apply.retry_policy import RetryPolicy
from penstock.change import Op
from penstock.dialects.postgres.connection import literal
from penstock.dialects.postgres.resources import sql_text
from penstock.dialects.postgres.source import capture
from penstock.dialects.postgres.target.ledger import PostgresLedger
from penstock.dialects.postgres.target.ledger_version import VERSION, read_version, stamp
from penstock.errors import FencedError, OperatorError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.report import Report, VerifyReport
from penstock.snapshot.instantiate import CopyState
from tests.lab import Lab
from tests.program import await_true

MADE = Path(__file__).with_name("earlier")
"""What setups of earlier versions have run."""

EARLIER = ["first", "history", "repair"]
"""Ledgers from before versions had numbers, the oldest first."""

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"

HELD = """
INSERT INTO penstock.process (name, source, epoch, status, error, low_watermark, high_watermark, consistent_at)
VALUES ('lab', 'shop', 7, 'ABORTED', 'why', 100, 120, '2026-01-02 03:04:05Z'),
  ('other', 'shop', 3, 'ENABLED', NULL, 50, 50, NULL);
INSERT INTO penstock.lane (process, lane, epoch, attempt, transactions, changes, errors, conflicts)
VALUES ('lab', 0, 7, 2, 10, 20, 1, 1), ('lab', 1, 7, 3, 11, 21, 0, 0), ('other', 0, 3, 0, 5, 6, 7, 0);
INSERT INTO penstock.applied (process, highest_scn, commit_scns) VALUES ('lab', 120, '{110,120}');
INSERT INTO penstock.instantiation (process, schema_name, table_name, scn, snapshot, state)
VALUES ('lab', 'public', 't', 90, '1:2:', 'READY'), ('lab', 'public', 'u', 95, '1:3:', 'COPYING');
INSERT INTO penstock.chunk (process, schema_name, table_name, chunk, bounds, rows)
VALUES ('lab', 'public', 'u', 0, '{"after": null}', 5), ('lab', 'public', 'u', 1, '{"upto": null}', NULL);
INSERT INTO penstock.dictionary VALUES ('lab', 'public', 't', 1, '{"name": "t"}');
INSERT INTO penstock.error
  (process, txn_id, commit_scn, message_number, message_count, error_number, error_message, found)
VALUES ('lab', '4711', 99, 2, 2, 26786, 'differs', '{"id":"1"}'), ('other', '4712', 49, 0, 1, 26690, 'gap', NULL);
INSERT INTO penstock.error_change
VALUES ('lab', 1, 1, 'insert', 'public', 't', 1, 0, NULL, '{"id":"1"}'),
  ('lab', 1, 2, 'update', 'public', 't', 1, 1, '{"id":"1"}', '{"v":null}'),
  ('other', 2, 1, 'gap', 'public', 't', 0, 0, NULL, NULL);
"""
"""Rows that fit a ledger of any version."""

SHAPE = """
WITH relation AS (
  SELECT oid, relname, relkind, relowner::regrole, relacl, reloptions, relrowsecurity
  FROM pg_class WHERE relnamespace = 'penstock'::regnamespace
)
SELECT 'relation', relname, concat_ws(' ', relkind, relowner, relacl, reloptions, relrowsecurity) FROM relation
UNION ALL
SELECT 'column', r.relname || '.' || a.attname, concat_ws(' ', rank() OVER (PARTITION BY r.oid ORDER BY a.attnum),
  format_type(a.atttypid, a.atttypmod), a.attcollation, a.attnotnull, a.attidentity, a.attgenerated, a.attstorage,
  a.attacl, pg_get_expr(d.adbin, d.adrelid))
FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
UNION ALL
SELECT 'constraint', r.relname || '.' || c.conname, pg_get_constraintdef(c.oid) || ' ' || c.convalidated
FROM relation r JOIN pg_constraint c ON c.conrelid = r.oid
UNION ALL
SELECT 'index', r.relname, pg_get_indexdef(r.oid) FROM relation r WHERE r.relkind = 'i'
UNION ALL
SELECT 'trigger', r.relname, pg_get_triggerdef(t.oid)
FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal
UNION ALL
SELECT 'comment', r.relname || '.' || d.objsubid, d.description
FROM relation r JOIN pg_description d ON d.objoid = r.oid
UNION ALL
SELECT 'schema', nspowner::regrole || ' ' || coalesce(nspacl::text, ''), obj_description(oid, 'pg_namespace')
FROM pg_namespace WHERE nspname = 'penstock'
ORDER BY 1, 2, 3
"""


def make_ledger(lab: Lab, name: str) -> None:
    """Install what an earlier version has made, as its setup did."""
    lab.target.execute((MADE / f"ledger_{name}.sql").read_text(encoding="utf-8"))
    lab.target.execute(f"COMMENT ON SCHEMA penstock IS 'penstock: 0123456789abcdef'; {HELD}")


def shape(lab: Lab) -> list[tuple[Any, ...]]:
    return lab.target.execute(SHAPE).fetchall()


def rows(lab: Lab, columns: Mapping[str, Sequence[str]]) -> dict[str, list[tuple[Any, ...]]]:
    """Read every table; of those that `columns` knows only these columns."""
    return {
        table: sorted(lab.target.execute(f"SELECT {', '.join(names)} FROM penstock.{table}"), key=repr)
        for table, names in columns.items()
    }


def columns(lab: Lab) -> dict[str, list[str]]:
    found = lab.target.execute(
        "SELECT table_name, array_agg(quote_ident(column_name::text)) FROM information_schema.columns"
        " WHERE table_schema = 'penstock' GROUP BY 1"
    )
    # An upgrade ends the epoch of every process.
    return {table: [name for name in names if name != "epoch"] for table, names in found}


def name_as(lab: Lab, comment: str | None) -> None:
    said = "NULL" if comment is None else literal(comment)
    lab.target.execute(f"COMMENT ON SCHEMA penstock IS {said}")


def run(pipeline: Pipeline) -> None:
    pipeline.run(threading.Event(), Report(), until_caught_up=True)


USES: dict[str, Callable[[Pipeline], object]] = {
    "run": run,
    "status": Pipeline.status,
    "errors": lambda pipeline: pipeline.errors().entries(),
    "retry": lambda pipeline: list(pipeline.retry(["lab.1"])),
    "verify": lambda pipeline: pipeline.verify(VerifyReport()),
    "resync": Pipeline.resync_plan,
}


@pytest.fixture(autouse=True)
def _no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused is refused at once; a test that fails should not wait for a minute."""
    monkeypatch.setattr(RetryPolicy, "insist", lambda _, work: work())


@pytest.mark.parametrize("name", EARLIER)
def test_an_upgraded_ledger_is_what_a_new_one_is_and_has_lost_nothing(lab: Lab, name: str) -> None:
    lab.source.execute(TABLE)
    make_ledger(lab, name)
    known = columns(lab)
    before = rows(lab, known)

    plan = lab.pipeline().setup()

    assert [step.summary for step in plan.target.steps if step.summary.startswith("upgrade")] == [
        "upgrade the ledger to version 2: whose history is followed; what was truncated, adopted or repaired",
        "upgrade the ledger to version 3: operations are checked",
        "upgrade the ledger to version 4: rows of snapshots that came among changes",
        "upgrade the ledger to version 5: which tables setup has made",
        "upgrade the ledger to version 6: a log of conflicts that were resolved",
        "upgrade the ledger to version 7: who could not apply an entry of the error queue, and what was done with it",
        "upgrade the ledger to version 8: parameters that are set while a process runs",
        "upgrade the ledger to version 9: transactions that wait behind others in the error queue",
        "upgrade the ledger to version 10: views of it, and what the file of the last run said",
        "upgrade the ledger to version 11: alterations of tables in the error queue",
        "upgrade the ledger to version 12: messages in the error queue",
        "upgrade the ledger to version 13: the handler of DDL in the view of processes",
        "upgrade the ledger to version 14: a log of DDL that was carried out",
        "upgrade the ledger to version 15: the error queue in commit order, page by page",
        "upgrade the ledger to version 16: entries of the error queue that a person has put on hold",
        "upgrade the ledger to version 17: how many changes runs have applied, by table and operation",
    ]
    assert rows(lab, known) == before
    assert lab.target.execute("SELECT name, epoch FROM penstock.process ORDER BY 1").fetchall() == [
        ("lab", 8),
        ("other", 4),
    ]
    assert lab.pipeline().plan().is_done
    upgraded = shape(lab)
    lab.target.execute("DROP SCHEMA penstock CASCADE; DROP TABLE t")
    lab.pipeline().setup()
    assert upgraded == shape(lab)


def test_an_upgraded_queue_is_listed_as_before(lab: Lab) -> None:
    lab.source.execute(TABLE)
    make_ledger(lab, "first")

    lab.pipeline().setup()

    (entry,) = lab.errors()
    assert (entry.id, entry.txn_id, entry.error_number, entry.op) == ("lab.1", "4711", 26786, Op.UPDATE)
    # Who put it there was not noted; a retry uses the rights of its connection.
    assert (entry.source, entry.recipient) == ("shop", None)
    state = lab.ledger.state()
    assert state is not None
    assert (state.status, state.low_watermark, state.transactions) == (ProcessStatus.ABORTED, 100, 21)


@pytest.mark.parametrize("use", USES)
def test_an_earlier_ledger_is_not_used(lab: Lab, use: str) -> None:
    lab.source.execute(TABLE)
    lab.pipeline().setup()
    lab.target.execute("DROP SCHEMA penstock CASCADE")
    make_ledger(lab, "first")
    before = shape(lab)

    with pytest.raises(OperatorError, match="the ledger is of version 1, and this penstock works with version") as e:
        USES[use](lab.pipeline())

    assert e.value.do == "run `penstock setup`, which upgrades it"
    assert shape(lab) == before


@pytest.mark.parametrize("use", [*USES, "setup", "teardown"])
def test_a_later_ledger_is_not_used(lab: Lab, use: str) -> None:
    lab.source.execute(TABLE)
    lab.pipeline().setup()
    lab.target.execute("ALTER TABLE penstock.process RENAME consumer TO reader")
    name_as(lab, stamp(VERSION + 1))
    before = shape(lab)

    with pytest.raises(
        OperatorError, match=f"of version {VERSION + 1}, and this penstock knows versions up to {VERSION}"
    ):
        (USES | {"setup": Pipeline.setup, "teardown": Pipeline.teardown})[use](lab.pipeline())

    assert shape(lab) == before


def test_a_ledger_that_does_not_say_its_version_is_not_used(lab: Lab) -> None:
    lab.source.execute(TABLE)
    lab.pipeline().setup()
    name_as(lab, None)

    for use in (Pipeline.status, Pipeline.setup):
        with pytest.raises(OperatorError, match="the comment on schema 'penstock' is gone") as caught:
            use(lab.pipeline())
        assert f"COMMENT ON SCHEMA penstock IS 'penstock: ledger {VERSION}'" in str(caught.value)


def test_a_ledger_in_a_schema_that_a_user_has_no_right_on_is_seen_all_the_same(lab: Lab) -> None:
    lab.source.execute(TABLE)
    lab.pipeline().setup()
    role = f"plain_{lab.name}"
    lab.target.execute(f"CREATE ROLE {role}")
    try:
        lab.target.execute(f"SET ROLE {role}")
        assert read_version(lab.target) == VERSION
    finally:
        lab.target.execute(f"RESET ROLE; DROP ROLE {role}")


def test_nothing_is_upgraded_while_a_run_of_any_pipeline_is_alive(lab: Lab) -> None:
    lab.source.execute(TABLE)
    make_ledger(lab, "first")
    before = shape(lab)
    plan = lab.pipeline().plan()
    with psycopg.connect(lab.target_url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(hashtext('penstock'), hashtext('other'))")

        with pytest.raises(OperatorError, match=f"from version 1 to {VERSION}, and runs use it: 'other'"):
            lab.pipeline().setup()
        # It has begun since the upgrade was planned.
        with pytest.raises(OperatorError, match="these processes are running: other"):
            lab.pipeline()._carry_out(plan, printer="plan")

    assert shape(lab) == before
    lab.pipeline().setup()


def test_an_upgrade_is_taken_only_from_the_version_it_was_planned_for(lab: Lab) -> None:
    lab.source.execute(TABLE)
    make_ledger(lab, "first")
    plan = lab.pipeline().plan()
    lab.pipeline().setup()
    name_as(lab, stamp(VERSION + 1))
    before = shape(lab)

    with pytest.raises(OperatorError, match="not of the version any more that this was planned for"):
        lab.pipeline()._carry_out(plan, printer="plan")

    assert shape(lab) == before


def test_the_printed_script_upgrades_too(lab: Lab) -> None:
    lab.source.execute(TABLE)
    make_ledger(lab, "history")
    script = lab.pipeline().plan().sql()
    at_target, _ = script.split("-- source: ")

    with psycopg.connect(lab.target_url, autocommit=True) as dba:
        dba.execute(at_target)

    assert not lab.pipeline().plan().target.steps


def test_a_run_that_begins_during_an_upgrade_waits_and_is_refused(lab: Lab) -> None:
    lab.setup(TABLE)
    lab.ledger.close()
    refused: list[BaseException] = []

    def begin() -> None:
        try:
            with closing(PostgresLedger(lab.target_url, "lab")) as ledger:
                ledger.acquire("shop", lanes=1)
        except OperatorError as exc:
            refused.append(exc)

    with psycopg.connect(lab.target_url) as upgrade:
        upgrade.execute("LOCK TABLE penstock.process IN ACCESS EXCLUSIVE MODE")
        upgrade.execute(f"COMMENT ON SCHEMA penstock IS '{stamp(VERSION + 1)}'")
        beginning = threading.Thread(target=begin)
        beginning.start()
        await_true(lambda: is_locked_out(lab), seconds=30)
    beginning.join()

    assert "this penstock knows versions up to" in str(refused[0])


def is_locked_out(lab: Lab) -> bool:
    row = lab.target.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)").fetchone()
    return bool(row and row[0])


def test_what_a_lost_run_has_left_at_work_writes_nothing_after_an_upgrade(lab: Lab) -> None:
    lab.setup(TABLE)
    lab.source.execute("INSERT INTO t VALUES (1, 'a')")
    part = lab.next_slice()
    assert part is not None
    lab.ledger.close()
    name_as(lab, stamp(VERSION - 1))

    lab.pipeline().setup()

    (result,) = lab.apply_slice(part, lanes=1)
    assert isinstance(result.failure, FencedError)
    assert lab.rows("t") == []


def test_what_an_upgrade_adds_belongs_to_the_owner_of_the_ledger(lab: Lab) -> None:
    lab.source.execute(TABLE)
    owner = f"owner_{lab.target.info.dbname}"
    lab.target.execute(f"CREATE ROLE {owner} SUPERUSER; SET ROLE {owner}")
    make_ledger(lab, "first")
    lab.target.execute("RESET ROLE")

    lab.pipeline().setup()

    owners = lab.target.execute(
        "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'penstock'::regnamespace"
    ).fetchall()
    assert owners == [(owner,)]
    lab.target.execute(f"DROP SCHEMA penstock CASCADE; DROP OWNED BY {owner}; DROP ROLE {owner}")


def test_an_upgrade_keeps_views_that_others_have_made_of_its_views(lab: Lab) -> None:
    lab.setup(TABLE)
    lab.ledger.close()
    lab.target.execute("CREATE VIEW public.watched AS SELECT apply_name, status FROM penstock.dba_apply")
    lab.target.execute(f"COMMENT ON SCHEMA penstock IS '{stamp(10)}'")

    lab.pipeline().setup()

    assert read_version(lab.target) == VERSION
    assert lab.target.execute("SELECT apply_name FROM watched").fetchall() == [(lab.name,)]
    lab.target.execute("DROP VIEW watched")


def test_states_are_the_same_on_both_sides(lab: Lab) -> None:
    lab.setup(TABLE)
    lab.source.execute("INSERT INTO t VALUES (1, 'a')")

    for states, column in (
        (ProcessStatus, "process.status"),
        (CopyState, "instantiation.state"),
        (Op, "error_change.op"),
    ):
        table, name = column.split(".")
        found = lab.target.execute(
            "SELECT array(SELECT m[1] FROM regexp_matches(pg_get_constraintdef(oid), '''([^'']+)''', 'g') m)"
            " FROM pg_constraint WHERE conrelid = %s::regclass AND conname = %s",
            [f"penstock.{table}", f"{table}_{name}_check"],
        ).fetchone()
        assert found is not None, column
        assert sorted(found[0]) == sorted(states), column


def test_a_capture_set_of_the_first_version_is_upgraded_and_what_it_holds_is_read(lab: Lab) -> None:
    lab.source.execute(TABLE)
    lab.source.execute((MADE / "capture_first.sql").read_text(encoding="utf-8"))
    lab.source.execute("INSERT INTO t VALUES (1, 'before'); UPDATE t SET v = 'then' WHERE id = 1")
    lab.target.execute(TABLE)
    with pytest.raises(OperatorError, match="not as this version of penstock makes it") as caught:
        lab.pipeline()._source.follow()
    assert caught.value.do == "run `penstock setup`, which upgrades it"

    plan = lab.pipeline().plan()
    with lab.pipeline()._source.setup() as session, session.transaction():
        for step in plan.source.steps:
            if not step.is_apart:
                session.take(step)
    # The table's own triggers are exchanged later.
    lab.source.execute("UPDATE t SET v = 'between' WHERE id = 1")
    lab.pipeline().setup()
    lab.source.execute("INSERT INTO t VALUES (2, 'after'); DELETE FROM t WHERE id = 1")

    assert plan.source.steps[0].summary.startswith("bring up to date, to version 5: the log of")
    assert lab.pipeline().plan().is_done
    assert [(change["op"], change["after"]) for change in lab.changes()] == [
        ("insert", '{"id":"1","v":"before"}'),
        ("update", '{"v":"then"}'),
        ("update", '{"v":"between"}'),
        ("insert", '{"id":"2","v":"after"}'),
        ("delete", None),
    ]
    lab.pipeline().teardown()
    assert lab.source.execute("SELECT FROM pg_namespace WHERE nspname = %s", [lab.set_name]).fetchall() == []


def test_an_earlier_ledger_can_be_removed(lab: Lab) -> None:
    lab.source.execute(TABLE)
    make_ledger(lab, "first")
    lab.target.execute("DELETE FROM penstock.error; DELETE FROM penstock.process WHERE name <> 'lab'")

    assert lab.pipeline().teardown().target.steps
    assert lab.target.execute("SELECT FROM pg_namespace WHERE nspname = 'penstock'").fetchall() == []
    assert lab.pipeline().teardown().is_done


def name_set_as_later(lab: Lab) -> None:
    lab.source.execute(f"COMMENT ON SCHEMA {lab.set_name} IS 'penstock: capture {capture.VERSION + 1} 0123'")


@pytest.mark.parametrize("use", ["setup", "teardown", "run", "status", "verify", "resync", "consumers"])
def test_a_capture_set_of_a_later_version_is_not_used(lab: Lab, use: str) -> None:
    lab.source.execute(TABLE)
    lab.pipeline().setup()
    name_set_as_later(lab)
    uses = {"setup": Pipeline.setup, "teardown": Pipeline.teardown, "consumers": Pipeline.consumers}

    with pytest.raises(OperatorError, match=f"is of version {capture.VERSION + 1}, and this penstock knows") as caught:
        (USES | uses)[use](lab.pipeline())

    assert "install the version of penstock that made it" in str(caught.value).lower()


def test_who_reads_a_log_of_a_later_version_is_refused(lab: Lab) -> None:
    lab.setup(TABLE)
    lab.log.close()
    name_set_as_later(lab)

    with pytest.raises(OperatorError, match="this penstock knows versions up to"):
        lab.log.tick()


def test_what_was_planned_for_an_earlier_capture_set_is_not_done_to_a_later_one(lab: Lab) -> None:
    lab.source.execute(TABLE)
    lab.pipeline().setup()
    lab.source.execute(f"COMMENT ON SCHEMA {lab.set_name} IS 'penstock: earlier'")
    plan = lab.pipeline().plan()
    name_set_as_later(lab)

    with pytest.raises(OperatorError, match="a later version of penstock has made the capture set anew"):
        lab.pipeline()._carry_out(plan, printer="plan")


def test_tables_of_the_ledger_are_named_where_the_ledger_is_kept() -> None:
    tables = re.findall(r"CREATE TABLE penstock\.(\w+)", sql_text("ledger/tables"))
    statement = re.compile(rf"(FROM|INTO|UPDATE|JOIN|COPY|TABLE) penstock\.({'|'.join(tables)})\b")
    package = Path(str(files("penstock")))

    found = {path.stem for path in package.rglob("*.py") if statement.search(path.read_text(encoding="utf-8"))}

    assert found == {
        "blocked_keys",
        "conflict_log",
        "controls",
        "copy_ledger",
        "ddl_log",
        "detail",
        "error_entries",
        "error_history",
        "error_queue",
        "lane_ledger",
        "ledger",
        "ledger_entries",
        "resync",
        "retry_session",
        "table_changes",
        "teardown",
    }


def test_a_process_leaves_an_earlier_ledger_that_another_one_uses(lab: Lab) -> None:
    lab.source.execute(TABLE)
    make_ledger(lab, "first")
    lab.target.execute("DELETE FROM penstock.error WHERE process = 'lab'")

    lab.pipeline().teardown()

    assert lab.target.execute("SELECT name FROM penstock.process").fetchall() == [("other",)]
