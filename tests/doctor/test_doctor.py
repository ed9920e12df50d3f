"""`penstock doctor` on real servers: each trouble is one finding that says how to fix it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.dialects.postgres import examine
from penstock.doctor.databases import clock_findings, pair_findings
from penstock.doctor.looks import Look, look_side_by_side
from penstock.doctor.pipelines import plan_findings
from penstock.errors import OperatorError, RetryableError
from penstock.examination import DatabaseFacts, Finding, Severity, disk_finding
from penstock.pipeline.plan import merged_grants
from tests.lab import Lab
from tests.program import Done, Program, await_true

SHOP = """
CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE "Order; --" ("No" bigint PRIMARY KEY, customer int REFERENCES customer);
"""


@pytest.fixture
def program(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    # Spark is not started, so nothing of its start has to be prepared.
    monkeypatch.setattr("tests.program.prepared_start", str)
    return Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)


def found(done: Done, look: str, severity: str = "") -> list[dict[str, str]]:
    return [one for one in done.json["findings"] if one["look"] == look and severity in ("", one["severity"])]


def test_a_pipeline_that_is_well_ends_with_0_within_ten_seconds(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    lab.pipeline().setup()
    lab.start()

    done = program("doctor", "--json")

    assert done.code == 0, done.out
    assert done.json["ok"] is True
    assert done.json["took_s"] < 10
    assert [one["what"] for one in done.json["findings"] if one["severity"] == "fault"] == []
    looked = {one["look"] for one in done.json["findings"]}
    assert {"java", "python", "extras", "network", "disk", "memory", "connection", "tables", "status"} <= looked
    assert set(done.json["databases"]) == {"shop", "copy"}
    assert abs(done.json["databases"]["shop"]["clock_off_s"]) < 1
    # Warnings come behind what is well, and faults last, where a person looks first.
    order = ["ok", "warning", "fault"]
    severities = [order.index(one["severity"]) for one in done.json["findings"]]
    assert severities == sorted(severities)

    shown = program("doctor")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert len(lines) == len(done.json["findings"]) + 1
    assert all(line.startswith(("ok       ", "warning  ", "fault    ")) for line in lines[:-1])
    assert "findings in" in lines[-1]


@pytest.mark.parametrize(
    ("sql", "look", "severity", "do"),
    [
        pytest.param(
            'CREATE UNLOGGED TABLE "Sess.1" (id int PRIMARY KEY)',
            "unlogged",
            "warning",
            'ALTER TABLE "public"."Sess.1" SET LOGGED',
            id="unlogged",
        ),
        pytest.param(
            'CREATE TABLE "a""b" (x int)',
            "keyless",
            "warning",
            'ALTER TABLE "public"."a""b" ADD PRIMARY KEY',
            id="keyless",
        ),
        pytest.param(
            "CREATE TABLE log (x int); CREATE PUBLICATION p FOR TABLE log",
            "replica_identity",
            "fault",
            'ALTER TABLE "public"."log" REPLICA IDENTITY FULL;',
            id="identity",
        ),
        pytest.param(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET session_replication_role = replica',"
            " current_database()); END $$",
            "triggers",
            "fault",
            "RESET session_replication_role;",
            id="silent triggers",
        ),
        pytest.param(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 3', current_database()); END $$",
            "connections",
            "warning",
            "CONNECTION LIMIT -1;",
            id="connections",
        ),
        pytest.param(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', current_database(), 'Asia/Tokyo');"
            " END $$",
            "time_zone",
            "warning",
            "SET timezone TO 'Asia/Tokyo'",
            id="time zone",
        ),
    ],
)
def test_a_trouble_of_the_source_is_one_finding(
    lab: Lab, program: Program, sql: str, look: str, severity: str, do: str
) -> None:
    lab.source.execute(SHOP)
    lab.source.execute(sql)

    done = program("doctor", "--json")

    (finding,) = found(done, look, severity)
    assert do in finding["do"]
    assert done.code == (1 if severity == "fault" else 0), done.out


def test_open_and_prepared_transactions_and_locks_are_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.source.execute(SHOP)
    # Long enough ago, as far as the looks go.
    for name in ("_OPEN_FOR_S", "_PREPARED_FOR_S", "_WAITS_FOR_S"):
        monkeypatch.setattr(examine, name, 0)

    with lab.session() as holder, psycopg.connect(lab.source_url, autocommit=True) as waiting:
        holder.execute("LOCK TABLE customer")
        holder.execute("PREPARE TRANSACTION 'it''s'")
        holder.execute("SELECT 1")
        thread = threading.Thread(target=lambda: waiting.execute("SELECT count(*) FROM customer"))
        thread.start()
        try:
            await_true(
                lambda: lab.source.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is not None, 10
            )
            seen = examine.examine(lab.source_url, examine.ExaminedPart(("public.*",), is_source=True))
        finally:
            lab.source.execute("ROLLBACK PREPARED 'it''s'")
            thread.join()

    by_look = {finding.look: finding for finding in seen.findings if finding.severity is Severity.WARNING}
    assert by_look["prepared"].do == "COMMIT PREPARED 'it''s'; or ROLLBACK PREPARED 'it''s';"
    assert "has had a transaction open" in by_look["transactions"].what
    assert by_look["transactions"].do.startswith("SELECT pg_terminate_backend(")
    assert "a prepared transaction holds a lock on public.customer: 1 session waiting" in by_look["locks"].what
    # A table that is locked is described all the same.
    assert [table.name.name for table in seen.facts.tables] == ["Order; --", "customer"]


def test_what_a_role_lacks_is_a_fault_with_the_grant(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    role = f"plain_{lab.source.info.dbname}"
    lab.source.execute(f"CREATE ROLE {role} LOGIN")
    plain = lab.source_url.replace("postgres@", f"{role}@")
    try:
        done = program("doctor", "--json", env={"SHOP_URL": plain})

        grants = [one["do"] for one in found(done, "rights", "fault")]
        assert done.code == 1
        assert f'GRANT SELECT, TRIGGER ON "public"."Order; --", "public"."customer" TO "{role}";' in grants
        for grant in grants:
            lab.source.execute(grant)
        again = program("doctor", "--json", env={"SHOP_URL": plain})
        assert found(again, "rights", "fault") == []
    finally:
        lab.source.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_server_that_is_away_is_one_fault_and_all_else_is_looked_at(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    done = program("doctor", "--json", env={"COPY_URL": "postgresql://penstock@127.0.0.1:1/copy"})

    assert done.code == 1
    (fault,) = [one for one in done.json["findings"] if one["severity"] == "fault"]
    assert fault["what"].startswith("cannot connect")
    assert "127.0.0.1:1" in fault["where"]
    assert set(done.json["databases"]) == {"shop"}
    assert found(done, "java", "ok")


def test_without_a_pipeline_file_the_machine_is_looked_at(program: Program) -> None:
    (program.folder / "pipeline.yaml").unlink()
    missing = program("doctor", "--json")
    assert missing.code == 2
    (fault,) = found(missing, "pipeline_file")
    assert fault["do"].startswith("penstock init")
    assert found(missing, "java", "ok")

    (program.folder / "pipeline.yaml").write_text("version: 1\nnmae: x\nnaem: y\n")
    wrong = program("doctor", "--json")
    assert wrong.code == 2
    lines = [one["what"] for one in found(wrong, "pipeline_file")]
    # A line for each fault.
    assert [sum(name in line for line in lines) for name in ("nmae", "naem")] == [1, 1]


def test_a_look_that_does_not_answer_keeps_no_other_waiting() -> None:
    never = threading.Event()

    def hangs() -> Iterator[Finding]:
        never.wait()
        yield Finding(Severity.OK, "slow", "late")

    def refused() -> Iterator[Finding]:
        raise OperatorError("no right", where="here", do="GRANT it")
        yield

    def unforeseen() -> Iterator[Finding]:
        raise ValueError("4711 is a value of a row")
        yield

    def fine() -> Iterator[Finding]:
        yield Finding(Severity.OK, "fine", "well")

    looks = [Look("slow", "far", hangs), Look("a", "", refused), Look("b", "", unforeseen), Look("c", "", fine)]
    slow, right, bad, well = look_side_by_side(looks, timeout_s=0.2)
    never.set()

    assert (slow.severity, slow.what) == (Severity.WARNING, "no answer within 0 s")
    assert (right.severity, str(right)) == (Severity.FAULT, "no right (here): GRANT it")
    assert bad.what == "this look failed: ValueError"
    assert "4711" not in str(bad)
    assert well.severity is Severity.OK


def test_one_error_that_several_looks_meet_is_told_once() -> None:
    def away() -> Iterator[Finding]:
        raise RetryableError("cannot connect", where="db1")
        yield

    assert len(look_side_by_side([Look(name, "", away) for name in "abc"], timeout_s=5)) == 1


def facts(**more: object) -> DatabaseFacts:
    plain = {"clock_off_s": 0.0, "answer_s": 0.001, "time_zone": "UTC", "collation": "UTF8, C, libc", "user": "u"}
    return DatabaseFacts(label="db", version="PostgreSQL 18", **{**plain, **more})  # type: ignore[arg-type]


def test_clocks_and_databases_that_differ_are_findings() -> None:
    assert [one.severity for one in clock_findings(facts(clock_off_s=-0.5))] == []
    assert [one.severity for one in clock_findings(facts(clock_off_s=-2.0))] == [Severity.WARNING]
    assert [one.severity for one in clock_findings(facts(clock_off_s=90.0))] == [Severity.FAULT]
    # A server that is slow to answer tells its time no better than that.
    assert [one.severity for one in clock_findings(facts(clock_off_s=2.0, answer_s=3.0))] == []
    assert [*pair_findings(facts(), facts())] == []
    differing = pair_findings(facts(), facts(time_zone="Europe/Berlin", collation="UTF8, en_US, libc"))
    assert [one.look for one in differing] == ["collation", "time_zone"]


def test_a_disk_that_runs_full_is_a_warning_and_then_a_fault() -> None:
    sizes = (100 << 30, 4 << 30, 1 << 20)
    assert [disk_finding("disk", free, 200 << 30, "/").severity for free in sizes] == [*Severity]


def test_grants_of_equal_rights_are_one_statement() -> None:
    grants = ['GRANT SELECT ON "a"."b" TO "u"', "ALTER ROLE u SUPERUSER", 'GRANT SELECT ON "a"."c ON ""d" TO "u"']
    assert merged_grants(grants) == [
        'GRANT SELECT ON "a"."b", "a"."c ON ""d" TO "u"',
        "ALTER ROLE u SUPERUSER",
    ]


def test_a_plan_with_steps_to_take_names_setup(lab: Lab) -> None:
    lab.source.execute(SHOP)
    (finding,) = [one for one in plan_findings(lab.pipeline().plan()) if one.severity is Severity.WARNING]
    assert finding.do == "penstock setup"


def test_the_json_is_one_object(program: Program) -> None:
    assert set(json.loads(program("doctor", "--json", "--timeout", "30").out)) == {
        "ok",
        "worst",
        "took_s",
        "findings",
        "databases",
        "versions",
        "bundle",
    }
