"""What makes a run end: being told to, even in a batch that takes for ever, and DDL that nobody told the capture of."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.errors import OperatorError
from tests.lab import Lab


class Watch:
    """Hears when changes are about to be applied."""

    def __init__(self) -> None:
        self.follows = threading.Event()

    def following(self) -> None:
        self.follows.set()

    def copying(self, *_: object) -> None: ...

    def copied(self, *_: object) -> None: ...

    def progressed(self, *_: object) -> None: ...

    def waiting(self, *_: object) -> None: ...

    def retrying(self, *_: object) -> None: ...

    def warned(self, text: str) -> None:
        raise AssertionError(text)


@pytest.mark.usefixtures("spark")
def test_a_batch_that_takes_for_ever_is_cut_off(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.pipeline._GRACE_S", 1.0)
    # Without a key every row has to be searched for, which takes milliseconds each.
    lab.source.execute("CREATE TABLE t (a int, b text); INSERT INTO t SELECT n, 'x' FROM generate_series(1, 30000) n")
    lab.pipeline().setup()
    lab.pipeline().run(threading.Event(), Watch(), until_caught_up=True)
    for first in range(0, 6000, 500):
        lab.source.execute("UPDATE t SET b = 'y' WHERE a BETWEEN %s AND %s", [first, first + 499])
    stop, watch = threading.Event(), Watch()
    run = threading.Thread(target=lambda: lab.pipeline().run(stop, watch))
    run.start()
    assert watch.follows.wait(60)
    time.sleep(1)

    told_at = time.monotonic()
    stop.set()
    run.join(60)

    assert not run.is_alive()
    assert time.monotonic() - told_at < 20
    left = lab.target.execute("SELECT count(*) FROM t WHERE b = 'x'").fetchone()
    assert left is not None
    assert left[0] > 24001, "the batch was over before it could be cut off"
    lab.pipeline().run(threading.Event(), Watch(), until_caught_up=True)
    lab.assert_identical("t")
    assert lab.errors() == []


@pytest.mark.usefixtures("spark")
def test_ddl_that_the_capture_was_not_told_of_ends_the_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.feed._CATALOG_AGE_S", 0.0)
    lab.source.execute("CREATE TABLE t (a int PRIMARY KEY)")
    lab.pipeline().setup()
    # As where no superuser set it up.
    lab.source.execute("DROP EVENT TRIGGER penstock_lab")
    watch, ended = Watch(), list[OperatorError]()

    def work() -> None:
        try:
            lab.pipeline().run(threading.Event(), watch)
        except OperatorError as exc:
            ended.append(exc)

    run = threading.Thread(target=work)
    run.start()
    assert watch.follows.wait(60)

    lab.source.execute("ALTER TABLE t ADD b int; INSERT INTO t VALUES (1, 2)")
    run.join(60)

    assert [exc.what for exc in ended] == ["the definition of t, or its triggers, changed after its capture was set up"]
    assert lab.target.execute("SELECT * FROM t").fetchall() == []
