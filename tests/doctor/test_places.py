"""`penstock doctor` at disks, folders, locks, slots and servers that never answer: all of them real."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkRuntimeError

from penstock.config import PipelineConfig
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres import examine
from penstock.doctor import disks, spark_cluster
from penstock.doctor.clusters import ClusterPart
from penstock.doctor.looks import look_side_by_side
from penstock.doctor.spark_task import reason_of
from penstock.examination import Severity
from penstock.pipeline_file import parse
from tests.faults.cluster import Cluster
from tests.lab import Lab
from tests.program import Program

NOBODY = 65534


def pipeline(capture: str, more: str) -> PipelineConfig:
    text = f"""
version: 1
name: places
connections:
  db: {{type: postgres, url: "postgresql://h/d"}}
  k: {{type: kafka, settings: {{bootstrap.servers: "h:9092"}}}}
capture: {capture}
{more}
"""
    return parse(text, name="x", environment={})


def published(path: Path) -> PipelineConfig:
    publish = f"publish: {{to: files, path: {path}}}"
    return pipeline("{source: trigger_queue, connection: db, tables: ['*.*']}", publish)


def captured(path: Path) -> PipelineConfig:
    return pipeline(f"{{source: change_files, path: {path}, tables: ['*.*']}}", "apply: {connection: db}")


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system of its own in a folder; skips where this user may not mount one."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def as_nobody(look: Callable[[], Any]) -> Any:
    """What a look finds for a user who owns nothing, in a process of its own; a superuser may do everything."""
    if os.geteuid():
        pytest.skip("only a superuser can become somebody else")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(write, json.dumps(look()).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as found:
        return json.loads(found.read())


def faults_of(config: PipelineConfig) -> list[tuple[str, str, str]]:
    findings = look_side_by_side([*disks.looks(config)], timeout_s=30)
    return [(one.what, one.where, one.do) for one in findings if one.severity is Severity.FAULT]


def test_a_disk_that_is_full_is_a_fault_of_the_folder_on_it(tmp_path: Path) -> None:
    with mounted(tmp_path / "full", "size=64k"):
        (tmp_path / "full/filling").write_bytes(bytes(64 << 10))
        (full,) = faults_of(published(tmp_path / "full"))
    assert full[0] == "the folder that is published to: 0.0 MB of 0.1 MB free"
    assert full[1] == str(tmp_path / "full")
    with mounted(tmp_path / "many", "size=8g,nr_inodes=10"):
        (many,) = faults_of(published(tmp_path / "many"))
    assert many[0].endswith("the file system takes 9 more files")
    assert many[2].startswith("df -i ")


def test_folders_that_this_user_may_not_use_are_named_with_the_command(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    (archive / "log").mkdir(parents=True)
    file = archive / "log" / "1.json"
    file.write_text("{}")
    # pytest's own folders are this user's alone.
    own = [folder for folder in tmp_path.parents if folder.name.startswith(("pytest-", "popen-"))]
    for folder in (*own, tmp_path, archive, archive / "log"):
        folder.chmod(0o755)
    file.chmod(0o600)
    ((what, where, do),) = as_nobody(lambda: faults_of(captured(archive)))
    assert (what, where) == ("this user may not read what is captured", str(file))
    assert do == f"sudo setfacl -R -m u:{NOBODY}:rX {archive}"
    file.chmod(0o644)
    assert as_nobody(lambda: faults_of(captured(archive))) == []
    ((what, where, do),) = as_nobody(lambda: faults_of(published(archive)))
    assert what == "the folder that is published to: this user may not write there"
    assert do.startswith(f"sudo chown -R {NOBODY} {archive}")
    archive.chmod(0o777)
    ((_, where, do),) = as_nobody(lambda: faults_of(published(archive)))
    assert where == str(archive / "log")
    ((what, where, do),) = faults_of(captured(tmp_path / "nosuch"))
    assert what == "the folder that is captured from is not there"
    assert "correct capture.path" in do


def test_slots_that_hold_the_log_and_sessions_that_hold_transactions_are_named(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "_HELD_BYTES", 1 << 20)
    monkeypatch.setattr(examine, "_OPEN_FOR_S", 0)
    slot = f"slot_{lab.source.info.dbname}"
    lab.source.execute("SELECT pg_create_physical_replication_slot(%s, true)", [slot])
    try:
        lab.source.execute("CREATE TABLE filling AS SELECT repeat('x', 1000) FROM generate_series(1, 4000)")
        # Where nobody waits for commits, some of it may not be written yet.
        lab.source.execute("SELECT pg_switch_wal()")
        with lab.session() as idle:
            idle.execute("BEGIN")
            idle.execute("SELECT 1")
            time.sleep(0.01)
            seen = examine.examine(lab.source_url, examine.ExaminedPart(is_source=True))
    finally:
        lab.source.execute("SELECT pg_drop_replication_slot(%s)", [slot])

    (held,) = [one for one in seen.findings if one.look == "wal" and slot in one.what]
    assert "of write-ahead log, and nobody reads it" in held.what
    assert held.do == f"start its reader, or SELECT pg_drop_replication_slot('{slot}');"
    open_ = [one.do for one in seen.findings if one.look == "transactions"]
    assert any("SET idle_in_transaction_session_timeout" in do for do in open_)


def test_a_server_with_room_for_few_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts a server of its own."""
    monkeypatch.setattr("tests.program.prepared_start", str)
    few = {"max_locks_per_transaction": "10", "max_connections": "20", "fsync": "off", "autovacuum": "off"}
    with EmbeddedPostgres(settings=few) as server:
        with psycopg.connect(server.url(), autocommit=True) as session:
            session.execute("CREATE DATABASE shop")
        with psycopg.connect(server.url("shop"), autocommit=True) as session:
            for number in range(60):
                session.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)")
        program = Program(tmp_path, server.url("shop"), server.url("shop"), name="locks")

        done = program("doctor", "--json", "--timeout", "60")

    found = [one for one in done.json["findings"] if one["look"] == "max_locks"]
    assert found[0]["what"] == "the server keeps 200 locks, and setup takes up to 240 in one transaction"
    assert found[0]["do"].startswith("ALTER SYSTEM SET max_locks_per_transaction = 24;")


def test_servers_that_accept_and_never_answer_keep_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.program.prepared_start", str)
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(64)
        address = f"127.0.0.1:{hole.getsockname()[1]}"
        program = Program(tmp_path, "", "", name="hole")
        (tmp_path / "pipeline.yaml").write_text(f"""
version: 1
name: hole
connections:
  events: {{type: kafka, settings: {{bootstrap.servers: "{address}"}}}}
  copy: {{type: postgres, url: "postgresql://u@{address}/d"}}
capture:
  source: debezium
  connection: events
  tables: ["*.*"]
  debezium: {{prefix: p, registry: {{url: "http://{address}"}}}}
apply: {{connection: copy}}
spark: {{master: "spark://{address}"}}
""")
        done = program("doctor", "--json")

    assert done.code == 1 or all(one["severity"] != "fault" for one in done.json["findings"])
    assert done.json["took_s"] < 9
    unanswered = {one["look"] for one in done.json["findings"] if one["severity"] != "ok"}
    assert {"connection", "kafka", "registry", "spark", "plan", "status"} <= unanswered
    # What answers is told all the same.
    assert {"java", "disk", "network"} <= {one["look"] for one in done.json["findings"] if one["severity"] == "ok"}


def test_a_spark_cluster_with_another_python_or_none_that_answers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts a cluster of one worker, on which a task runs in Python with Penstock, and in one without."""
    with Cluster(tmp_path, workers=1) as cluster:
        hosts = cluster.url.partition("://")[2]

        def look(**more: str) -> list[tuple[str, str]]:
            settings = {"spark.master": cluster.url, "spark.executor.memory": "512m", **more}
            config: Any = SimpleNamespace(spark_settings=settings)
            return [(one.severity, one.what) for one in spark_cluster._look(config, cluster.url, hosts, 200)]

        ((severity, well),) = look()
        assert severity == "ok"
        assert well.startswith(f"an executor runs Python {sys.version.split()[0]}, Java ")
        # One that has none of the packages.
        bare = tmp_path / "python"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -E -S "$@"\n')
        bare.chmod(0o755)
        monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
        assert look() == [("fault", "the Python of executors has no module penstock")]
    ((severity, away),) = look()
    assert severity == "fault"
    assert "Spark's master does not answer" in away


@pytest.mark.parametrize(
    ("capture", "more", "part"),
    [
        (
            "{source: debezium, connection: k, tables: ['*.*'], debezium: {prefix: shop}}",
            "apply: {connection: db}",
            ClusterPart(["shop.*", "shop.transaction"], group="penstock.places"),
        ),
        (
            "{source: dbwatcher, connection: k, tables: ['*.*'], dbwatcher: {topic: watched}}",
            "apply: {connection: db}",
            ClusterPart(["watched"]),
        ),
        (
            "{source: trigger_queue, connection: db, tables: ['*.*']}",
            "publish: {to: kafka, connection: k, debezium: {prefix: shop, transaction_topic: ends}}",
            ClusterPart(writes=["shop.*", "ends", "penstock.places.position"]),
        ),
        (
            "{source: trigger_queue, connection: db, tables: ['*.*']}",
            "publish: {to: kafka, connection: k, format: dbwatcher}",
            ClusterPart(writes=["places.dbwatcher", "penstock.places.position"]),
        ),
    ],
)
def test_the_topics_of_a_pipeline_are_looked_at(capture: str, more: str, part: ClusterPart) -> None:
    assert ClusterPart.of(pipeline(capture, more), "k") == part


def test_another_python_is_told_by_what_spark_says_of_it() -> None:
    versions = {"worker_version": "3.9", "driver_version": "3.11"}
    said = PySparkRuntimeError(errorClass="PYTHON_VERSION_MISMATCH", messageParameters=versions)
    assert reason_of(str(said)) == f"executors run Python 3.9, and this machine Python {platform.python_version()}"
    assert reason_of("java.io.IOException: planted") == "the cluster has not run a task"
