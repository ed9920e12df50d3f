"""A run that waits for somebody's lock says for whom, and goes on once the lock is free."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from penstock.database import LockedError
from tests.lab import Lab
from tests.program import await_true


class Ear:
    """Hears what a person should know."""

    def __init__(self) -> None:
        self.follows = threading.Event()
        self.warnings: list[str] = []
        self.facts: list[object] = []

    def following(self) -> None:
        self.follows.set()

    def copying(self, *_: object) -> None: ...

    def copied(self, *_: object) -> None: ...

    def compared(self, *_: object) -> None: ...

    def queued(self, entry: object) -> None: ...

    def progressed(self, *_: object) -> None: ...

    def waiting(self, *_: object) -> None: ...

    def retrying(self, *_: object) -> None: ...

    def warned(self, text: str, event: str = "note", facts: object = None) -> None:
        self.warnings.append(text)
        self.facts.append(facts)

    def ended(self) -> None: ...

    def close(self) -> None: ...


def in_the_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.locks._LONG_S", 0.5)
    monkeypatch.setattr("penstock.pipeline.locks._LOOK_EVERY_S", 0.2)


@pytest.mark.rule("A-38")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("hold", "write"),
    [
        ("SELECT FROM t WHERE id = 1 FOR UPDATE", "UPDATE t SET v = 2"),
        ("LOCK TABLE t IN SHARE MODE", "DELETE FROM t"),
    ],
    ids=["a row", "a table"],
)
def test_who_keeps_a_run_waiting_is_named_once(lab: Lab, hold: str, write: str) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1), (2, 1)")
    lab.pipeline().setup()
    lab.pipeline().run(threading.Event(), Ear(), until_caught_up=True)
    lab.source.execute(write)
    ear = Ear()
    with psycopg.connect(lab.target_url, application_name="month-end report") as somebody:
        somebody.execute(hold)
        run = in_the_background(lambda: lab.pipeline().run(threading.Event(), ear, until_caught_up=True))
        await_true(lambda: bool(ear.warnings))
        pid = somebody.info.backend_pid
    run.join(60)

    assert not run.is_alive()
    (said,) = ear.warnings
    assert "for a lock on public.t: session" in said
    assert f"session {pid} (user 'postgres', 'month-end report', idle in transaction" in said
    assert f"pg_terminate_backend({pid})" in said
    (facts,) = ear.facts
    assert isinstance(facts, dict)
    assert (facts["table"], facts["holder"], facts["where"]) == ("public.t", pid, lab.pipeline()._target.label)
    assert facts["session"] != pid
    assert facts["seconds"] >= 0.5
    lab.assert_identical("t")
    assert lab.errors() == []


@pytest.mark.usefixtures("spark")
def test_who_keeps_the_source_s_tables_from_being_read_is_named(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    lab.pipeline().setup()
    lab.pipeline().run(threading.Event(), Ear(), until_caught_up=True)
    ear = Ear()
    with psycopg.connect(lab.source_url) as somebody:
        somebody.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        verify = in_the_background(lambda: lab.pipeline().verify(ear))
        await_true(lambda: bool(ear.warnings))
    verify.join(60)
    assert "on public.t" in ear.warnings[0]


@pytest.mark.usefixtures("spark")
def test_a_retry_names_who_keeps_it_waiting(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    lab.pipeline().setup()
    lab.pipeline().run(threading.Event(), Ear(), until_caught_up=True)
    lab.target.execute("UPDATE t SET v = 7")
    lab.source.execute("UPDATE t SET v = 2")
    lab.pipeline().run(threading.Event(), Ear(), until_caught_up=True)
    lab.target.execute("UPDATE t SET v = 1")
    (entry,) = lab.errors()
    said: list[str] = []
    with psycopg.connect(lab.target_url) as somebody:
        somebody.execute("SELECT FROM t FOR UPDATE")
        retry = in_the_background(lambda: list(lab.pipeline().retry([entry.id], said.append)))
        await_true(lambda: bool(said))
    retry.join(60)
    assert "on public.t" in said[0]
    assert lab.errors() == []


@pytest.mark.usefixtures("spark")
def test_a_resync_names_who_keeps_it_waiting(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    lab.pipeline().setup()
    lab.pipeline().run(threading.Event(), Ear(), until_caught_up=True)
    said: list[str] = []
    with psycopg.connect(lab.target_url) as somebody:
        somebody.execute("SELECT FROM t")
        resync = in_the_background(lambda: lab.pipeline().resync(said.append))
        await_true(lambda: bool(said))
        pid = somebody.info.backend_pid
    resync.join(60)
    assert f"for a lock on public.t: session {pid} " in said[0]
    assert lab.rows("t") == []


@pytest.mark.parametrize("side", ["source", "target"])
def test_setup_that_gives_up_names_who_holds_what_it_waits_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    monkeypatch.setattr("penstock.pipeline.steps._PATIENCE_S", 2.0)
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.target.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    url, wanted, statement = {
        "source": (lab.source_url, "public.t", "INSERT INTO t VALUES (1)"),
        "target": (lab.target_url, "public.parent", "INSERT INTO parent VALUES (1)"),
    }[side]
    if side == "target":
        lab.source.execute("CREATE TABLE parent (id int PRIMARY KEY); ALTER TABLE t ADD p int REFERENCES parent")
    with psycopg.connect(url, application_name="month-end report") as somebody:
        somebody.execute(statement)
        pid = somebody.info.backend_pid
        with pytest.raises(LockedError) as caught:
            lab.pipeline().setup()
    error = caught.value
    assert f": another session holds a lock: session {pid} (user 'postgres', 'month-end report', idle in" in error.what
    assert error.what.endswith(f"holds a lock on {wanted}")
    assert f"SELECT pg_terminate_backend({pid})" in error.do
