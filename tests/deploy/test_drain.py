"""SIGTERM during work: the batch is finished, the exit code is 0, and the next run goes on from there."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import psycopg
import pytest

from tests.lab import Lab
from tests.program import Program


@pytest.fixture
def program(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    # Two starts of Spark are not worth preparing a third.
    monkeypatch.setattr("tests.program.prepared_start", str)
    return Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)


def test_a_run_that_is_told_to_stop_finishes_what_it_has_begun(lab: Lab, program: Program) -> None:
    """Starts Spark twice; writers are at work all the while."""
    lab.source.execute("CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
    assert program("setup").code == 0
    is_over = threading.Event()

    def write() -> None:
        with psycopg.connect(lab.source_url, autocommit=True) as session:
            while not is_over.wait(0.002):
                session.execute("INSERT INTO t (v) SELECT 'x' FROM generate_series(1, 50)")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with program.start("run") as run:
            run.await_line("applying, ")
            code = run.end(signal.SIGTERM, seconds=120)
            said = run.said
    finally:
        is_over.set()
        writer.join()

    assert code == 0, said
    assert "stopping: what was begun is finished first" in said
    stopped = program("status", "--json").json
    assert (stopped["state"], stopped["reason"]) == ("stopped", "it was told to stop")
    # Nothing is half applied: what is at the target is one beginning of the source, whole transactions of it.
    assert stopped["low_watermark"] == stopped["high_watermark"]
    assert stopped["errors"] == 0
    (there,) = lab.target.execute("SELECT count(*) FROM t").fetchone() or (0,)
    (whole,) = lab.source.execute("SELECT count(*) FROM t").fetchone() or (0,)
    assert 0 < there < whole
    assert there % 50 == 0

    again = program("run", "--until-caught-up")

    assert again.code == 0, again.err
    lab.assert_identical("t")
