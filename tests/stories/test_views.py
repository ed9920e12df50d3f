"""What monitoring reads at the target: the ledger's views, `penstock status --detail`, and `penstock conflicts`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from penstock.apply.apply_errors import ROW_DIFFERS, ROW_MISSING
from penstock.cli.status import show_detail
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.target.ledger_version import VIEWS
from penstock.pipeline.connectors import TargetLedger
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.trimming import Trimming
from tests.conftest import lab_between
from tests.lab import Lab
from tests.program import Program, await_true

TABLES = """
CREATE TABLE acct (id int PRIMARY KEY, bal int, note text);
CREATE TABLE visit (shop int, day int, people int);
INSERT INTO acct SELECT n, n * 100, 'a' FROM generate_series(1, 4) n;
"""

SETTINGS = """\
  maximum_scn: 1000000
  tables:
    public.acct:
      compare_old_values: {note: [delete]}
      conflicts: [{on: update, columns: [bal], method: maximum, by: bal}]
      handlers:
        delete:
          statements:
            note: ["UPDATE public.acct SET note = 'gone' WHERE id = :old.id", ":lcr.execute TRUE"]
    public.visit: {key: [shop, day]}
  dependencies:
    values: {people: {public.acct: [id], public.visit: [people]}}
    objects: [{table: public.visit, after: public.acct}]
"""


@pytest.fixture(scope="module")
def looked_at(source_server: EmbeddedPostgres, target_server: EmbeddedPostgres, spark: object) -> Iterator[Lab]:
    """A pipeline with settings of each kind, one conflict that was resolved, and one transaction in the error queue."""
    with lab_between(source_server, target_server) as lab:
        _fill(lab)
        yield lab


def _fill(lab: Lab) -> None:
    lab.source.execute(TABLES)
    lab.apply_settings = SETTINGS
    lab.pipeline().setup()
    _catch_up(lab)
    lab.target.execute("UPDATE acct SET bal = 150 WHERE id = 1; DELETE FROM acct WHERE id = 2")
    lab.source.execute("UPDATE acct SET bal = 200 WHERE id = 1")
    lab.source.execute("UPDATE acct SET note = 'secret' WHERE id = 2")
    lab.source.execute("UPDATE acct SET bal = 301 WHERE id = 3")
    _catch_up(lab)


def _catch_up(lab: Lab) -> None:
    lab.pipeline().run(threading.Event(), until_caught_up=True)


def _rows(lab: Lab, view: str, columns: str) -> list[tuple[Any, ...]]:
    return lab.target.execute(f'SELECT {columns} FROM penstock."{view}" ORDER BY 1, 2').fetchall()


@pytest.mark.rule("A-197", "A-198", "A-199")
def test_views_tell_what_the_file_says_and_what_became_of_it(looked_at: Lab) -> None:
    lab = looked_at
    state = lab.ledger.state()
    assert state is not None
    (entry,) = lab.errors()

    assert _rows(lab, "dba_apply_key_columns", "object_name, column_name, column_position") == [
        ("visit", "day", 2),
        ("visit", "shop", 1),
    ]
    assert _rows(
        lab, "dba_apply_table_columns", "object_name, column_name, compare_old_on_delete, compare_old_on_update"
    ) == [("acct", "note", "YES", "NO")]
    assert _rows(
        lab,
        "dba_apply_conflict_columns",
        "object_owner, object_name, operation_name, method_name, resolution_column, column_name",
    ) == [("public", "acct", "UPDATE", "MAXIMUM", "bal", "bal")]
    assert _rows(lab, "dba_apply_dml_handlers", "object_name, operation_name, handler_type, handler_name") == [
        ("acct", "DELETE", "STMT HANDLER", "note")
    ]
    assert _rows(lab, "dba_streams_stmts", "handler_name, execution_sequence, statement") == [
        ("note", 1, "UPDATE public.acct SET note = 'gone' WHERE id = :old.id"),
        ("note", 2, ":lcr.execute TRUE"),
    ]
    assert _rows(lab, "dba_apply_value_dependencies", "dependency_name, object_name, column_name") == [
        ("people", "acct", "id"),
        ("people", "visit", "people"),
    ]
    assert _rows(lab, "dba_apply_object_dependencies", "object_name, parent_object_name") == [("visit", "acct")]
    assert _rows(lab, "dba_apply_instantiated_objects", "object_name, state") == [("acct", "READY"), ("visit", "READY")]
    assert _rows(lab, "dba_apply", "apply_name, status, max_applied_message_number") == [
        (lab.name, "DISABLED", state.high_watermark)
    ]
    assert _rows(lab, "dba_apply_progress", "apply_name, applied_message_number") == [(lab.name, state.low_watermark)]
    assert _rows(
        lab, "dba_apply_error", "local_transaction_id, source_commit_scn, error_number, message_count, is_held"
    ) == [(entry.id, entry.commit_scn, ROW_MISSING, 1, False)]
    assert _rows(
        lab,
        "dba_apply_error_messages",
        "local_transaction_id, transaction_message_number, object_name, operation, error_number",
    ) == [(entry.id, 1, "acct", "UPDATE", ROW_MISSING)]


@pytest.mark.rule("A-199")
def test_no_view_shows_the_value_of_a_row(looked_at: Lab) -> None:
    for view in VIEWS:
        for (row,) in looked_at.target.execute(f'SELECT to_jsonb(v)::text FROM penstock."{view}" v'):
            assert "secret" not in row


@pytest.mark.rule("A-200", "A-202", "A-204")
def test_counters_add_up(looked_at: Lab) -> None:
    lab = looked_at
    ((state, applied, errors, resolved, low, high, servers),) = _rows(
        lab,
        "v$streams_apply_coordinator",
        "state, total_applied, total_errors, total_resolved, lwm_message_number, hwm_message_number,"
        " active_server_count",
    )

    assert (state, applied, errors, resolved, servers) == ("STOPPED", 3, 1, 1, 0)
    assert low <= high
    done = _rows(lab, "v$streams_apply_server", "server_id, total_assigned, total_messages_applied, total_errors")
    assert sum(assigned for _, assigned, _, _ in done) == applied
    assert sum(failed for *_, failed in done) == errors


@pytest.mark.rule("A-200")
def test_a_run_that_is_alive_is_told_of(lab: Lab) -> None:
    lab.setup(TABLES)
    lab.acquire()

    assert _rows(lab, "v$streams_apply_coordinator", "state, startup_time IS NULL") == [("IDLE", False)]


@pytest.mark.rule("A-192", "A-197")
def test_parameters_are_those_of_the_file_or_set_since(looked_at: Lab) -> None:
    lab = looked_at
    lab.pipeline().set_parameter("maximum_scn", "infinite")
    lab.pipeline().set_parameter("trace_level", "1")

    found = {
        name: (value, by) for name, value, by in _rows(lab, "dba_apply_parameters", "parameter, value, set_by_user")
    }

    assert found["MAXIMUM_SCN"] == ("INFINITE", "YES")
    assert found["TRACE_LEVEL"] == ("1", "YES")
    assert found["PARALLELISM"] == (str(lab.pipeline().config.apply.parallelism), "NO")


def test_who_watches_needs_a_right_on_the_views_alone(looked_at: Lab) -> None:
    lab = looked_at
    lab.target.execute("CREATE ROLE watcher_of_views")
    try:
        lab.target.execute("GRANT USAGE ON SCHEMA penstock TO watcher_of_views")
        lab.target.execute("GRANT SELECT ON penstock.dba_apply_error TO watcher_of_views")
        with lab.target.transaction():
            lab.target.execute("SET LOCAL ROLE watcher_of_views")
            assert len(_rows(lab, "dba_apply_error", "apply_name, error_number")) == 1
            with pytest.raises(psycopg.errors.InsufficientPrivilege), lab.target.transaction():
                lab.target.execute("SELECT FROM penstock.error")
    finally:
        lab.target.execute("DROP OWNED BY watcher_of_views; DROP ROLE watcher_of_views")


@pytest.mark.rule("A-203")
def test_status_tells_the_same_in_detail(looked_at: Lab, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lab = looked_at
    lab.pipeline().set_parameter("trace_level", "1")
    pipeline = lab.pipeline()
    assert isinstance(pipeline, Pipeline)
    more = pipeline.detail()
    assert more is not None

    show_detail(more)
    printed = capsys.readouterr().out.splitlines()
    plain = Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)("status", "--detail", "--json").json[
        "detail"
    ]

    assert any(line.startswith("public.acct\t") and line.endswith("\t1\t1") for line in printed), printed
    assert any(line.startswith("trace_level\t1\tby ") for line in printed), printed
    assert sum(one["transactions"] for one in plain["servers"]) == 2
    assert [(one["table"], one["is_copied"], one["errors"], one["conflicts"]) for one in plain["tables"]] == [
        ("public.acct", True, 1, 1),
        ("public.visit", True, 0, 0),
    ]
    assert {one["name"]: one["value"] for one in plain["parameters"]}["trace_level"] == "1"


def test_conflicts_that_were_resolved_are_listed_without_their_values(looked_at: Lab, tmp_path: Path) -> None:
    lab = looked_at
    state = lab.ledger.state()
    assert state is not None
    program = Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)

    as_json = program("conflicts", "--json")
    assert as_json.code == 0, as_json.err
    (found,) = as_json.json
    listed = program("conflicts", "--table", "public.acct", "--method", "maximum", "--since", "2020-01-01")
    others = [
        program("conflicts", *options).out
        for options in (["--table", "*.visit"], ["--outcome", "merged"], ["--until", "2020-01-01T00:00:00Z"])
    ]
    wrong = program("conflicts", "--since", "yesterday")

    assert datetime.fromisoformat(found.pop("resolved_at")).tzinfo is not None
    assert 0 < found.pop("commit_scn") <= state.low_watermark
    assert found.pop("txn_id").isdigit()
    assert found == {
        "id": 1,
        "table": "public.acct",
        "op": "update",
        "error_number": ROW_DIFFERS,
        "row_is": "exists",
        "method": "maximum",
        "outcome": "applied",
        "columns": ["bal"],
        "message_number": 1,
    }
    assert len(listed.out.splitlines()) == 2
    assert "\tupdate public.acct\texists\tmaximum\tapplied\tbal\t" in listed.out
    assert others == ["no conflict that was resolved fits\n"] * 3
    assert (wrong.code, wrong.err) == (
        2,
        "penstock: --since must be a time, not 'yesterday'. Write 2024-01-02T03:04:05, UTC if not said\n",
    )


_RESOLVED = """
INSERT INTO penstock.conflict (process, txn_id, commit_scn, message_number, op, schema_name, table_name, error_number,
  row_is, method, outcome, columns, resolved_at)
SELECT name, '1', 1, 1, 'update', 'public', 'acct', 26786, 'exists', 'overwrite', 'applied', '{bal}',
  now() - %s * interval '1 day' FROM penstock.process
"""


def test_a_run_forgets_conflicts_that_are_older_than_the_file_says(lab: Lab, spark: object) -> None:
    lab.source.execute(TABLES)
    lab.pipeline().setup()
    lab.acquire()
    lab.target.execute(_RESOLVED, [95])
    lab.ledger.close()
    lab.apply_settings = "  conflict_log_days: 100\n"

    _catch_up(lab)
    assert len(lab.rows("penstock.conflict")) == 1

    lab.apply_settings = ""
    _catch_up(lab)
    assert lab.rows("penstock.conflict") == []


def test_trimming_goes_on_until_none_of_the_oldest_is_too_old(lab: Lab) -> None:
    lab.setup(TABLES)
    lab.acquire()
    lab.target.execute(_RESOLVED, [0])
    lab.target.execute(
        _RESOLVED.replace("FROM penstock.process", "FROM penstock.process, generate_series(1, 25000)"), [60]
    )
    lab.target.execute(_RESOLVED, [40])

    lab.ledger.trim_conflicts(timedelta(days=50))

    assert lab.target.execute("SELECT id FROM penstock.conflict ORDER BY 1").fetchall() == [(1,), (25002,)]


def test_for_ever_is_for_ever() -> None:
    class Ledger:
        def trim_conflicts(self, keep: timedelta) -> None:
            raise AssertionError(keep)

    Trimming(cast(TargetLedger, Ledger()), None).look()


def test_detail_counts_the_rows_that_were_written_to_a_table_and_to_its_partitions(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE plain (id int PRIMARY KEY); CREATE TABLE part (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        " CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);"
        " CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20)"
    )
    lab.source.execute("INSERT INTO plain VALUES (1), (2); INSERT INTO part VALUES (1), (11), (12)")
    lab.source.execute("UPDATE plain SET id = 3 WHERE id = 1")
    lab.apply()
    lab.ledger.close()
    pipeline = lab.pipeline()
    assert isinstance(pipeline, Pipeline)

    def written() -> dict[str, int | None]:
        more = pipeline.detail()
        assert more is not None
        return {str(one.table): one.written for one in more.tables}

    # What was netted is written once. A server counts a session's rows when that session has been idle for a moment.
    counted = {"public.plain": 2, "public.part": 3, "public.part_1": 1, "public.part_2": 2}
    await_true(lambda: written() == counted, 20, lambda: str(written()))
