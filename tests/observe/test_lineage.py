"""OpenLineage events of runs, written and read by OpenLineage's own client."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, Run, RunEvent, RunState
from openlineage.client.serde import Serde
from openlineage.client.transport.transport import Transport

from penstock.apply.progress import Progress
from penstock.change import TableName
from penstock.errors import ConfigError, OperatorError, RetryableError
from penstock.logical import LogicalType
from penstock.observe.lineage import Lineage, TablesRead, client_of_environment
from penstock.observe.places import DatasetPlace
from penstock.position import Scn
from penstock.schema import Column, TableSchema
from tests.alerts.hook import serving
from tests.lab import Lab
from tests.program import Program

ITEM = TableSchema(TableName("public", "item"), (Column.of("id", LogicalType.parse("integer")),))
COPY = TableSchema(TableName("sales", "item"), (Column.of("id", LogicalType.parse("integer")),))


class Kept(Transport):
    kind = "kept"

    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        self.events.append(json.loads(Serde.to_json(event)))


def lineage(transport: Transport, **more: Any) -> Lineage:
    places = {
        "source": DatasetPlace("postgres://db1:5432", "shop."),
        "target": DatasetPlace("postgres://db2:5432", "copy."),
    }
    given = {"tables": lambda: TablesRead([ITEM], [COPY])} | places | more
    return Lineage("shop", OpenLineageClient(transport=transport), **given)


def test_a_run_starts_runs_with_its_tables_and_completes() -> None:
    kept = Kept()
    told = lineage(kept)
    told.began()
    told.following()
    told.finished(Progress(Scn(1)), is_stopped=True)

    start, running, complete = kept.events
    assert [one["eventType"] for one in kept.events] == ["START", "RUNNING", "COMPLETE"]
    assert len({one["run"]["runId"] for one in kept.events}) == 1
    assert start["job"]["namespace"] == "penstock"
    assert start["job"]["name"] == "shop"
    assert start["inputs"] == []
    assert running["inputs"] == complete["inputs"]
    (read,), (written,) = running["inputs"], running["outputs"]
    assert (read["namespace"], read["name"]) == ("postgres://db1:5432", "shop.public.item")
    assert (written["namespace"], written["name"]) == ("postgres://db2:5432", "copy.sales.item")
    (column,) = written["facets"]["schema"]["fields"]
    assert (column["name"], column["ordinal_position"]) == ("id", 1)


def test_an_error_fails_the_run_and_says_why() -> None:
    kept = Kept()
    told = lineage(kept)
    told.began()
    told.failed(OperatorError("the disk is full"))
    assert [one["eventType"] for one in kept.events] == ["START", "FAIL"]
    assert kept.events[1]["run"]["facets"]["errorMessage"]["message"] == "the disk is full"


def test_what_cannot_be_sent_or_asked_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    class Down(Transport):
        kind = "down"

        def emit(self, event: Any) -> None:
            raise ConnectionError("https://user:s3cret@host refused")

    def tables() -> TablesRead:
        raise RetryableError("the source is away")

    told = lineage(Down(), tables=tables)
    told.began()
    told.following()
    told.finished(Progress(Scn(1)), is_stopped=False)
    assert caplog.text.count("an OpenLineage event was not delivered") == 1
    assert "s3cret" not in caplog.text


def test_a_transport_that_hangs_keeps_no_run_waiting() -> None:
    may_end = threading.Event()

    class Hangs(Kept):
        def emit(self, event: Any) -> None:
            may_end.wait(60)
            super().emit(event)

    told = lineage(Hangs())
    told.began()
    for _ in range(1000):
        told.following()
    may_end.set()
    told.finished(Progress(Scn(1)), is_stopped=False)


def test_openlineage_that_is_not_configured_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="--lineage: OpenLineage is not configured"):
        client_of_environment()


RULES = """
rules:
  tables:
    public.item: {to: sales.item, drop: [secret], add: {twice: n * 2}}
"""


def test_a_real_run_writes_events_that_the_client_reads(lab: Lab, program: Program, tmp_path: Path) -> None:
    """Takes some seconds: a run with Spark."""
    with (program.folder / "pipeline.yaml").open("a") as file:
        file.write(RULES)
    config = {"transport": {"type": "file", "log_file_path": str(tmp_path / "events"), "append": True}}
    (tmp_path / "openlineage.yml").write_text(yaml.safe_dump(config))
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY, n int, secret text)")
    lab.source.execute("INSERT INTO item VALUES (1, 4, 'a value of a row')")
    lab.target.execute("CREATE SCHEMA sales")
    assert program("setup").code == 0

    done = program(
        "run", "--until-caught-up", "--lineage", env={"OPENLINEAGE_CONFIG": str(tmp_path / "openlineage.yml")}
    )

    assert done.code == 0, done.err
    text = (tmp_path / "events").read_text()
    events = [json.loads(line) for line in text.splitlines()]
    assert [one["eventType"] for one in events] == ["START", "RUNNING", "COMPLETE"]
    # The client checks what it makes of them: ids, times, uris.
    for one in events:
        made = RunEvent(
            eventType=RunState(one["eventType"]),
            eventTime=one["eventTime"],
            producer=one["producer"],
            run=Run(one["run"]["runId"]),
            job=Job(one["job"]["namespace"], one["job"]["name"]),
            inputs=[InputDataset(each["namespace"], each["name"]) for each in one["inputs"]],
        )
        assert one["schemaURL"] == made.schemaURL
    (read,), (written,) = events[1]["inputs"], events[1]["outputs"]
    assert read["name"].endswith(".public.item")
    assert written["name"].endswith(".sales.item")
    assert [one["name"] for one in read["facets"]["schema"]["fields"]] == ["id", "n", "secret"]
    assert [one["name"] for one in written["facets"]["schema"]["fields"]] == ["id", "n", "twice"]
    assert read["namespace"].startswith("postgres://")
    assert "a value of a row" not in text
    assert "penstock@" not in text


def test_a_run_that_fails_tells_a_server_of_openlineage(lab: Lab, program: Program) -> None:
    with serving() as server:
        env = {"OPENLINEAGE_URL": server.url.partition("/hook")[0]}
        assert program("run", "--lineage", env=env).code == 3
        assert {one.path for one in server.requests} == {"/api/v1/lineage"}
        assert [one.json["eventType"] for one in server.requests] == ["START", "FAIL"]
