"""A look at pipelines whose databases answer, or do not."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.metrics import exposition, sample
from tests.lab import Lab
from tests.metrics.test_exposition import series, value
from tests.program import Program

AWAY = "postgresql://penstock@127.0.0.1:1/shop"


@pytest.fixture
def opened(program: Program, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Opens the pipeline of the program's file, with variables of one's own."""

    def open_(**environment: str) -> Any:
        for name, text in {**program.environment, **environment}.items():
            monkeypatch.setenv(name, text)
        return penstock.open(program.folder / "pipeline.yaml")

    return open_


def test_a_pipeline_is_looked_at_whatever_state_it_is_in(lab: Lab, opened: Any) -> None:
    new = exposition([sample(opened())])
    assert series(new, "penstock_pipeline_state")["not set up",] == 1

    lab.setup("CREATE TABLE item (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO item VALUES (1)")
    lab.apply()
    lab.target.execute("INSERT INTO item VALUES (2)")
    lab.source.execute("INSERT INTO item VALUES (2)")
    lab.apply()

    alive = exposition([sample(opened())])
    assert value(alive, "penstock_up") == value(alive, "penstock_source_up") == 1
    assert value(alive, "penstock_transactions_total") == 1
    assert sum(series(alive, "penstock_error_queue_entries").values()) == 1
    ((consumer, _),) = series(alive, "penstock_log_held_bytes")
    assert consumer == lab.name

    lost = exposition([sample(opened(SHOP_URL=AWAY))])
    assert (value(lost, "penstock_source_up"), value(lost, "penstock_target_up")) == (0, 1)
    assert value(lost, "penstock_transactions_total") == 1
    assert series(lost, "penstock_lag_seconds") == {}

    # And back again, by itself.
    assert value(exposition([sample(opened(SHOP_URL=lab.source_url))]), "penstock_source_up") == 1

    gone = exposition([sample(opened(COPY_URL=AWAY))])
    assert value(gone, "penstock_target_up") == 0
    assert series(gone, "penstock_up") == {}


def test_a_pipeline_that_publishes_is_looked_at_as_well(
    lab: Lab, opened: Any, program: Program, tmp_path: Path
) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    file = program.folder / "pipeline.yaml"
    file.write_text(file.read_text().partition("apply:")[0] + f"publish: {{to: files, path: {tmp_path / 'archive'}}}\n")
    pipeline = opened()
    pipeline.setup()

    text = exposition([sample(pipeline)])

    assert value(text, "penstock_target_up") == 1
    assert value(text, "penstock_up") == 0
    assert series(text, "penstock_tables")["to_copy",] == 1


def test_a_port_that_is_taken_is_said_before_anything_starts(program: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        # Nothing is set up, which a run that had begun would say.
        refused = program("run", "--metrics", f":{port}")

    assert refused.code == 2
    assert refused.err.startswith(f"penstock: --metrics: cannot listen at 127.0.0.1:{port}: address already in use")
    assert len(refused.err.splitlines()) == 1
    assert "capture set" in program("run", "--metrics", ":0").err
