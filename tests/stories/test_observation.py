"""What the page shows of a pipeline is one value, whatever is out of reach."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing

import psycopg
import pytest

from penstock.history import LogHold
from penstock.pipeline.observation import Observer
from penstock.pipeline.status import PipelineState
from penstock.pipeline_file import parse
from penstock.wiring import open_pipeline
from tests.lab import FILE, Lab
from tests.program import await_true


def test_a_lane_that_waits_is_seen_with_its_table_and_the_session_in_its_way(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, x int)")
    lab.source.execute("INSERT INTO t VALUES (1, 1)")
    lab.apply()
    lab.source.execute("UPDATE t SET x = 2")
    pipeline = lab.pipeline()
    with psycopg.connect(lab.target_url) as other, closing(Observer(pipeline)) as observer:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        applying = threading.Thread(target=lab.apply)
        applying.start()

        await_true(lambda: len(observer.look().work.waits) > 0)
        seen = observer.look()
        other.rollback()
        applying.join()

        (wait,) = seen.work.waits
        assert (str(wait.table), wait.holder) == ("public.t", other.info.backend_pid)
        (lane,) = [one for one in seen.work.sessions if one.session == wait.session]
        assert (lane.purpose, lane.waits_for) == ("apply", "Lock relation")
        assert observer.look().work.waits == []


def test_a_pipeline_that_is_not_set_up_and_one_whose_target_is_away_are_seen_as_such(lab: Lab) -> None:
    pipeline = lab.pipeline()
    with closing(Observer(pipeline)) as observer:
        seen = observer.look()
    assert seen.status is not None
    assert seen.status.state is PipelineState.NOT_SET_UP

    text = FILE.format(name=lab.name, tables=["public.*"], row_triggers=[])
    away = {"SHOP_URL": lab.source_url, "COPY_URL": "postgresql://penstock@127.0.0.1:1/copy", **os.environ}
    gone = open_pipeline(parse(text, name="pipeline.yaml", environment=away))
    with closing(Observer(gone)) as observer:
        lost = observer.look()
    assert lost.status is None
    assert "127.0.0.1" in (lost.lost or "")


def test_the_tables_that_wait_for_their_first_copy_are_named(lab: Lab) -> None:
    lab.setup("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    lab.target.execute("DELETE FROM penstock.instantiation WHERE table_name = 'b'")

    status = lab.pipeline().status()

    assert ([str(table) for table in status.waiting], status.to_copy) == (["public.b"], 1)
    assert status.to_json()["waiting"] == ["public.b"]


def test_the_log_is_read_through_no_more_often_than_that_takes_a_hundredth_of_the_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline, took_s = lab.pipeline(), [0.0]
    look, looks = pipeline.log_hold, []

    def log_hold() -> LogHold:
        looks.append(None)
        time.sleep(took_s[0])
        return look()

    monkeypatch.setattr(pipeline, "log_hold", log_hold)
    with closing(Observer(pipeline)) as observer:
        observer.look()
        # Due again at once, or a second at most after what a look at an empty log takes.
        await_true(lambda: observer.look() and len(looks) == 2, 30)
        took_s[0] = 0.5
        await_true(lambda: observer.look() and len(looks) == 3, 30)
        for _ in range(3):
            seen = observer.look()
    assert len(looks) == 3
    assert seen.status is not None
    assert [one.consumer.name for one in seen.status.consumers] == [lab.name]
