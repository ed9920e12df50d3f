"""What the page shows of a pipeline is one value, whatever is out of reach."""

from __future__ import annotations

import os
import threading
from contextlib import closing

import psycopg

from penstock.pipeline.observation import observe
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
    with psycopg.connect(lab.target_url) as other, closing(pipeline.watch_work()) as watch:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        applying = threading.Thread(target=lab.apply)
        applying.start()

        await_true(lambda: len(watch.look().waits) > 0)
        seen = observe(pipeline, watch)
        other.rollback()
        applying.join()

        (wait,) = seen.work.waits
        assert (str(wait.table), wait.holder) == ("public.t", other.info.backend_pid)
        (lane,) = [one for one in seen.work.sessions if one.session == wait.session]
        assert (lane.purpose, lane.waits_for) == ("apply", "Lock relation")
        assert watch.look().waits == []


def test_a_pipeline_that_is_not_set_up_and_one_whose_target_is_away_are_seen_as_such(lab: Lab) -> None:
    pipeline = lab.pipeline()
    with closing(pipeline.watch_work()) as watch:
        seen = observe(pipeline, watch)
    assert seen.status is not None
    assert seen.status.state is PipelineState.NOT_SET_UP

    text = FILE.format(name=lab.name, tables=["public.*"], row_triggers=[])
    away = {"SHOP_URL": lab.source_url, "COPY_URL": "postgresql://penstock@127.0.0.1:1/copy", **os.environ}
    gone = open_pipeline(parse(text, name="pipeline.yaml", environment=away))
    with closing(gone.watch_work()) as watch:
        lost = observe(gone, watch)
    assert lost.status is None
    assert "127.0.0.1" in (lost.lost or "")


def test_the_tables_that_wait_for_their_first_copy_are_named(lab: Lab) -> None:
    lab.setup("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    lab.target.execute("DELETE FROM penstock.instantiation WHERE table_name = 'b'")

    status = lab.pipeline().status()

    assert ([str(table) for table in status.waiting], status.to_copy) == (["public.b"], 1)
    assert status.to_json()["waiting"] == ["public.b"]
