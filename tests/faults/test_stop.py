"""What makes a run end: being told to, even in a batch that takes for ever. What does not: DDL behind its back."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.lab import Lab
from tests.program import await_true


class Watch:
    """Hears when changes are about to be applied."""

    def __init__(self) -> None:
        self.follows = threading.Event()

    def following(self) -> None:
        self.follows.set()

    def copying(self, *_: object) -> None: ...

    def copied(self, *_: object) -> None: ...

    def queued(self, entry: object) -> None: ...

    def progressed(self, *_: object) -> None: ...

    def waiting(self, *_: object) -> None: ...

    def retrying(self, *_: object) -> None: ...

    def warned(self, text: str, event: str = "note", facts: object = None) -> None:
        raise AssertionError(text)

    def ended(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.usefixtures("spark")
def test_a_batch_that_takes_for_ever_is_cut_off(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.running._GRACE_S", 1.0)
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    lab.pipeline().setup()
    lab.pipeline().run(threading.Event(), Watch(), until_caught_up=True)
    stop, watch = threading.Event(), Watch()
    run = threading.Thread(target=lambda: lab.pipeline().run(stop, watch))
    with psycopg.connect(lab.target_url) as somebody:
        # Whoever wants this row waits for as long as somebody likes.
        somebody.execute("SELECT FROM t FOR UPDATE")
        lab.source.execute("UPDATE t SET v = 2")
        run.start()
        assert watch.follows.wait(60)
        await_true(lambda: bool(lab.target.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount))

        stop.set()
        run.join(30)

        assert not run.is_alive()
        assert lab.target.execute("SELECT v FROM t").fetchall() == [(1,)]
    lab.pipeline().run(threading.Event(), Watch(), until_caught_up=True)
    lab.assert_identical("t")
    assert lab.errors() == []


@pytest.mark.usefixtures("spark")
def test_ddl_that_the_capture_was_not_told_of_is_followed_by_the_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.feed._CATALOG_AGE_S", 0.0)
    lab.source.execute("CREATE TABLE t (a int PRIMARY KEY)")
    lab.pipeline().setup()
    # As where no superuser set it up.
    lab.source.execute('DROP EVENT TRIGGER penstock_lab; DROP EVENT TRIGGER "penstock_lab drop"')
    stop, watch = threading.Event(), Watch()
    run = threading.Thread(target=lambda: lab.pipeline().run(stop, watch))
    run.start()
    assert watch.follows.wait(60)

    lab.target.execute("ALTER TABLE t ADD b int")
    lab.source.execute("ALTER TABLE t ADD b int")
    lab.source.execute("INSERT INTO t VALUES (1, 2)")
    await_true(lambda: lab.target.execute("SELECT * FROM t").fetchall() == [(1, 2)])
    now, built = (f"SELECT array_agg(version) FROM penstock_lab.{view}" for view in ("captured_now", "built_now"))
    await_true(lambda: lab.source.execute(now).fetchall() == lab.source.execute(built).fetchall(), 30)

    stop.set()
    run.join(60)
    assert not run.is_alive()
    assert lab.errors() == []
