"""Triggers of setup and a log that another product made: its names, its order, and what it leaves to writers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from penstock.change import TableName
from penstock.pipeline_file import parse
from penstock.wiring import open_pipeline
from tests.lab import Lab
from tests.stories.test_event_log import Log, run


@pytest.fixture
def log(lab: Lab, tmp_path: Path) -> Log:
    folder = tmp_path / "xds"
    folder.mkdir()
    return Log(lab, folder)


TRIGGERS = ', triggers: {"indirect.*": fields}'

NAMED = """
CREATE TABLE indirect.event_log (record_id bigserial, st text NOT NULL, "Type" text NOT NULL,
  event_time timestamptz NOT NULL, perpetrator text NOT NULL, table_name text, table_key text, column_name text,
  ov text, new_value text)
"""


@pytest.mark.rule("E-1")
def test_triggers_write_columns_by_their_names_and_what_has_no_default(log: Log) -> None:
    log.lab.source.execute(NAMED)
    pipeline = log.publication(
        ", columns: {old_value: ov, status: st, event_type: Type}, future_events: true" + TRIGGERS
    )
    pipeline.setup()
    log.lab.source.execute("SET timezone = 'Asia/Kolkata'; INSERT INTO indirect.acct VALUES (1, 'x')")

    run(pipeline)

    assert log.told == [("add", "num=1")]
    row = log.lab.source.execute(
        "SELECT st, perpetrator = session_user, event_time BETWEEN now() - interval '5 min' AND now(), new_value"
        " FROM indirect.event_log"
    ).fetchone()
    assert row == ("S", True, True, "x")


@pytest.mark.rule("E-1")
@pytest.mark.parametrize("more", [", layout: B", ", columns: {old_value: Old, table_key: Key}"])
def test_the_log_that_setup_makes_is_as_the_settings_have_it(log: Log, more: str) -> None:
    pipeline = log.publication(more + TRIGGERS)
    pipeline.setup()
    assert pipeline.plan().source.steps == []
    log.lab.source.execute("INSERT INTO indirect.acct VALUES (1, 'x'); UPDATE indirect.acct SET owner = 'y'")

    run(pipeline)

    assert log.told == [("add", "num=1"), ("modify", "num=1")]


UNFIT = [
    ("ALTER TABLE indirect.event_log ALTER record_id DROP IDENTITY", "has no default, so triggers have no number"),
    ("REVOKE INSERT ON indirect.event_log FROM {user}", 'GRANT INSERT ON "indirect"."event_log" TO "{user}"'),
    (
        "CREATE SEQUENCE indirect.numbers;"
        " ALTER SEQUENCE indirect.numbers OWNED BY indirect.event_log.record_id;"
        " ALTER TABLE indirect.event_log ALTER record_id SET DEFAULT nextval('indirect.numbers')",
        'GRANT USAGE ON SEQUENCE indirect.numbers TO "{user}"',
    ),
]


@pytest.mark.rule("E-1")
def test_a_log_that_triggers_could_not_write_is_refused_before_a_table_has_one(log: Log) -> None:
    """Every change of the table would fail."""
    log.publication().setup()
    user = f"setup_{log.lab.source.info.dbname}"
    log.lab.source.execute(f"CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA indirect TO {user}")
    url = psycopg.conninfo.make_conninfo(log.lab.source_url, user=user)
    text = log.text(f"publish: {{to: files, path: {log.folder}, format: xds}}\n", TRIGGERS)
    theirs = open_pipeline(parse(text, name="p.yaml", environment={"SHOP_URL": url, "COPY_URL": url}))

    found = []
    for change, _ in UNFIT:
        log.lab.source.execute(f"GRANT SELECT, INSERT, UPDATE ON indirect.event_log TO {user}")
        log.lab.source.execute(change.format(user=user))
        found.append([str(fault) for fault in theirs.plan().source.faults])

    log.lab.source.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")
    for faults, (_, why) in zip(found, UNFIT, strict=True):
        assert any(why.format(user=user) in fault for fault in faults), faults


MODES = pytest.mark.parametrize("mode", ["fields", "fields_now", "rows_now"])

CHANGED = [
    "TRUNCATE indirect.acct",
    "TRUNCATE indirect.usr_phone",
    "TRUNCATE indirect.usr, indirect.usr_phone",
    "TRUNCATE indirect.part_1",
    "TRUNCATE indirect.part",
]


@MODES
def test_rows_that_a_truncate_takes_are_logged_as_deleted(log: Log, spark: object, mode: str) -> None:
    source = log.lab.source
    parts = (
        "CREATE TABLE indirect.part (id int PRIMARY KEY, v text) PARTITION BY LIST (id);"
        " CREATE TABLE indirect.part_1 PARTITION OF indirect.part FOR VALUES IN (1);"
        " CREATE TABLE indirect.part_2 PARTITION OF indirect.part FOR VALUES IN (2)"
    )
    source.execute(parts)
    pipeline = log.open("apply: {connection: copy}\n", f', triggers: {{"indirect.*": {mode}}}')
    pipeline.setup()
    rows = (
        "INSERT INTO indirect.acct VALUES (1, 'a'), (2, 'b'); INSERT INTO indirect.usr VALUES (1, 'Ann'), (2, 'Bob');"
        " INSERT INTO indirect.usr_phone VALUES (1, '11'), (1, '12'), (2, '22');"
        " INSERT INTO indirect.part VALUES (1, 'one'), (2, 'two')"
    )
    source.execute(rows)
    run(pipeline)
    for statement in CHANGED:
        source.execute(statement)
        run(pipeline)
        for table in ("acct", "usr", "usr_phone", "part"):
            log.lab.assert_identical(f"indirect.{table}")
    source.execute(rows)
    run(pipeline)

    for table in ("acct", "usr", "usr_phone", "part"):
        log.lab.assert_identical(f"indirect.{table}")
    # It is written once, and an installation of an earlier version gets it by setup.
    assert pipeline.plan().source.steps == []


@MODES
def test_fractions_of_times_and_rows_of_nulls_are_applied_as_they_are(log: Log, spark: object, mode: str) -> None:
    pair = "CREATE TYPE indirect.pair AS (a int, b text)"
    table = "CREATE TABLE indirect.kinds (id int PRIMARY KEY, t time, p indirect.pair)"
    log.lab.source.execute(f"{pair}; {table}")
    log.lab.target.execute(f"CREATE SCHEMA indirect; {pair}")
    pipeline = log.open("apply: {connection: copy}\n", f', triggers: {{"indirect.*": {mode}}}')
    pipeline.setup()
    log.lab.source.execute("INSERT INTO indirect.kinds VALUES (1, '10:11:12.123456', '(,)'), (2, '10:11', NULL)")
    run(pipeline)
    log.lab.assert_identical_text("indirect.kinds")
    log.lab.source.execute("UPDATE indirect.kinds SET t = t + '0.5 s', p = '(1,)' WHERE id = 1")

    run(pipeline)

    log.lab.assert_identical_text("indirect.kinds")


PARTS = (
    "CREATE TABLE indirect.part (id int PRIMARY KEY, v text) PARTITION BY LIST (id);"
    " CREATE TABLE indirect.part_1 PARTITION OF indirect.part FOR VALUES IN (1)"
)


def test_a_truncate_of_a_partition_that_was_added_later_is_logged_once_setup_has_run(log: Log, spark: object) -> None:
    source = log.lab.source
    source.execute(PARTS)
    pipeline = log.open("apply: {connection: copy}\n", TRIGGERS)
    pipeline.setup()
    source.execute('CREATE TABLE indirect."part 2" PARTITION OF indirect.part FOR VALUES IN (2)')
    source.execute("INSERT INTO indirect.part VALUES (1, 'one'), (2, 'two')")

    warned: list[str] = []
    listener: Any = SimpleNamespace(warned=lambda text, *_: warned.append(text))

    pipeline.follow(listener)

    unlogged = 'TRUNCATE of indirect."part 2" alone is not logged; run `penstock setup`'
    assert warned == [f"indirect.part was altered, and {unlogged}"]

    steps = pipeline.setup().source.steps
    assert [step.summary for step in steps] == ['have TRUNCATE of indirect."part 2" written to the event log']
    run(pipeline)
    source.execute('TRUNCATE indirect."part 2"')
    run(pipeline)
    log.lab.assert_identical("indirect.part")
    assert pipeline.plan().source.steps == []
    pipeline.follow(listener)
    assert len(warned) == 1


def test_a_table_whose_key_a_log_cannot_name_is_left_out_of_setup(log: Log) -> None:
    log.lab.source.execute('CREATE TABLE indirect.odd ("a=b" int PRIMARY KEY, v text)')
    pipeline = log.open("apply: {connection: copy}\n", TRIGGERS)

    done = pipeline.setup()

    (fault,) = done.left_out[TableName("indirect", "odd")]
    assert "a log cannot name key column 'a=b'" in str(fault)
    assert not log.lab.source.execute("SELECT FROM pg_trigger WHERE tgrelid = 'indirect.odd'::regclass").fetchall()


def test_a_key_that_a_log_cannot_name_is_noted_where_others_write_the_log(log: Log) -> None:
    log.lab.source.execute('CREATE TABLE indirect.odd ("a=b" int PRIMARY KEY, v text)')

    notes = "\n".join(log.publication().plan().source.notes)

    assert "indirect.odd: a log cannot name key column 'a=b'" in notes
