"""What a notebook shows of a pipeline: the facts, escaped, without secrets; row values where they are asked for."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import html
from penstock.change import ARROW_SCHEMA
from penstock.errors import ConfigError, OperatorError, RetryableError
from penstock.pipeline.samples import StatusSamples
from penstock.pipeline.status import Status, not_set_up
from penstock.storage import LocalStorage
from tests.archives import ITEM, publish, read
from tests.lab import Lab

SECRET = "s3kr1t-passw0rd"
HOSTILE = '<script>alert("x")</script>'

ARCHIVE = """\
version: 1
name: copy
connections:
  copy: {type: postgres, url: "postgresql://me:${env:PASSWORD}@127.0.0.1:1/copy"}
capture:
  source: change_files
  path: archive
  tables: ["*.*"]
apply:
  connection: copy
"""


@pytest.fixture
def restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pipeline from an archive; its target is out of reach."""
    monkeypatch.setenv("PASSWORD", SECRET)
    (tmp_path / "pipeline.yaml").write_text(ARCHIVE)
    publish(LocalStorage(tmp_path / "archive"))
    return penstock.open(tmp_path / "pipeline.yaml")


def test_a_pipeline_shows_its_places_and_no_secret_and_connects_to_nothing(restored: Any) -> None:
    shown = restored._repr_html_()
    assert "copy, applies" in shown
    assert "archive" in shown
    assert SECRET not in shown + repr(restored)


def test_changes_are_the_same_as_arrow_pandas_and_spark(restored: Any, tmp_path: Path, spark: SparkSession) -> None:
    changes = restored.changes()
    table = changes.to_arrow()

    assert table.schema == ARROW_SCHEMA
    assert table.num_rows == sum(batch.num_rows for batch in changes.batches()) > 0
    assert table.to_pylist() == read(LocalStorage(tmp_path / "archive")).to_pylist()
    assert list(changes.to_pandas()["commit_scn"]) == table["commit_scn"].to_pylist()
    frame = changes.to_spark(spark)
    assert sorted(row["commit_scn"] for row in frame.collect()) == sorted(table["commit_scn"].to_pylist())
    assert sum(changes.tables().values()) == table.num_rows
    assert str(table["commit_scn"][0]) in changes._repr_html_()


def test_changes_are_bounded_by_position_and_table(restored: Any) -> None:
    every = restored.changes().to_arrow().to_pylist()
    last = max(row["commit_scn"] for row in every)

    assert restored.changes(since=last).to_arrow().to_pylist() == [row for row in every if row["commit_scn"] == last]
    only = restored.changes(tables=["public.item"])
    assert set(only.tables()) == {ITEM}
    assert restored.changes(since=last + 1).to_arrow().num_rows == 0
    with pytest.raises(ConfigError, match="since must be a position or a time"):
        restored.changes(since="yesterday")


def test_a_pipeline_without_an_archive_says_what_to_read_instead(lab: Lab) -> None:
    with pytest.raises(OperatorError, match="keeps no archive of changes") as error:
        lab.pipeline(["public.*"]).changes()
    assert "errors().show(id)" in error.value.do


def test_status_plan_and_errors_show_themselves_escaped_and_row_values_only_for_an_entry(lab: Lab) -> None:
    name = f'"{HOSTILE}"'.replace('"x"', '""x""')
    lab.setup(f"CREATE TABLE {name} (id int PRIMARY KEY, name text)")
    lab.target.execute(f"INSERT INTO {name} VALUES (1, 'in the way')")
    lab.source.execute(f"INSERT INTO {name} VALUES (1, %s)", [f"<b>{HOSTILE}</b>"])
    lab.apply()
    pipeline = lab.pipeline()
    (entry,) = lab.errors()

    status, plan, queue = (part._repr_html_() for part in (pipeline.status(), pipeline.plan(), pipeline.errors()))
    shown = pipeline.errors().show(entry.id)._repr_html_()

    assert "1 transaction" in status
    assert "everything is in place" in plan
    assert entry.id in queue
    assert "in the way" not in queue
    assert "&lt;b&gt;" in shown
    assert "in the way" in shown
    for text in (status, plan, queue, shown):
        assert "<script" not in text
        assert "<b>" not in text


def test_a_plan_says_that_something_is_in_the_way(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.target.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    shown = lab.pipeline()._repr_html_() + lab.pipeline().plan()._repr_html_()
    assert "not ready: 0 privileges missing, 1 obstacle" in shown
    assert "holds rows that penstock did not copy" in shown


def test_a_table_of_html_is_cut_and_says_so() -> None:
    made = html.table(["n"], [[n] for n in range(250)], marked=[(1, 0)])
    assert made.count("<tr>") == 201
    assert "... and 50 more" in made
    assert made.count("font-weight:bold;color") == 1
    assert html.note("a\n<b>\x00") == "<div style='margin:2px 0'>a<br>&lt;b&gt;\\x00</div>"


def sampled(*statuses: Status | None) -> StatusSamples:
    """Samples of these; None stands for a server that is out of reach."""
    found = iter(statuses)

    def look() -> Status:
        status = next(found)
        if status is None:
            raise RetryableError("away")
        return status

    samples = StatusSamples(look, every_s=0.01)
    for _ in statuses:
        samples.take()
    return samples


def test_samples_give_lag_and_throughput_and_skip_what_was_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = not_set_up("shop")
    samples = sampled(replace(empty, changes=10, lag_s=1.5), None, replace(empty, changes=40, lag_s=None))
    first, second = samples.samples
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    samples._found = [replace(first, at=noon), replace(second, at=noon + timedelta(seconds=3))]

    assert [rate for _, rate in samples.throughput()] == [10.0]
    assert list(samples.to_pandas()["changes"]) == [10, 40]
    assert "1.5" in samples._repr_html_()
    lag, rate = samples.plot_lag(), samples.plot_throughput()
    assert lag.axes.lines[0].get_ydata()[0] == 1.5
    assert lag._repr_png_().startswith(b"\x89PNG")
    assert list(rate.axes.lines[0].get_ydata()) == [10.0]


def test_watching_takes_samples_until_the_block_ends() -> None:
    samples = StatusSamples(lambda: not_set_up("shop"), every_s=0.001)
    with samples:
        assert samples.take_for(0.005) is samples
    assert len(samples.samples) >= 2


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OperatorError, match="matplotlib is not installed") as error:
        sampled(not_set_up("shop")).plot_lag()
    assert "penstock[notebook]" in error.value.do
