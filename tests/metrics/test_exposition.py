"""The text of all metrics: what Prometheus' own tool and client read in it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from penstock.apply.batch import AppliedBatch, Interval, phases_of
from penstock.apply.detail import QueuedCount
from penstock.apply.lane import LaneResult
from penstock.apply.ledger import ProcessStatus
from penstock.apply.progress import Progress
from penstock.change import Change, Op, TableName
from penstock.errors import RetryableError
from penstock.history import Consumer, ConsumerState, OpenTransaction
from penstock.metrics import PipelineSample, RunMetrics, exposition
from penstock.pipeline.status import Status
from penstock.position import Scn
from penstock.stream import Backlog
from tests.test_status import found, process

ORDERS = TableName("public", "orders")
NOW = datetime.now(UTC)


def consumer(name: str, id_: str, *, oldest_at: datetime | None, size_bytes: int = 5) -> ConsumerState:
    return ConsumerState(Consumer(id_, name), Scn(3), 4, size_bytes, oldest_at, NOW)


def status(name: str = "shop", **more: object) -> Status:
    one = found(Backlog(3, NOW - timedelta(seconds=60), 4096))
    # It was looked at a minute after its oldest change, whenever this test comes.
    return replace(one, pipeline=name, lag_s=60.0, **more)  # type: ignore[arg-type]


def looked(one: Status, queued: Sequence[QueuedCount] = ()) -> PipelineSample:
    return replace(PipelineSample.of(one, queued), sampled_at=NOW.timestamp())


def series(text: bytes, name: str) -> dict[tuple[str, ...], float]:
    """The series of a name: values by their labels', in the order of the labels' names, without the pipeline's."""
    return {
        tuple(value for label, value in sorted(sample.labels.items()) if label != "pipeline"): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == name
    }


def value(text: bytes, name: str) -> float:
    (only,) = series(text, name).values()
    return only


def lint(text: bytes) -> str:
    """What promtool has to say; nothing if all is well."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    return (done.stdout + done.stderr).decode() + ("" if done.returncode == 0 else f"exit code {done.returncode}")


def worked() -> RunMetrics:
    """A run that has copied, applied two batches, met conflicts and lost a server."""
    counted = RunMetrics("shop")
    counted.copying(5, 2)
    counted.copied(3, 1000)
    counted.retrying(RetryableError("lost"), None)
    progress = Progress(Scn(0), began_at=NOW - timedelta(hours=1))
    for position, lanes in ((Scn(4), 1), (Scn(9), 2)):
        results = [LaneResult(lane=lane, began_ns=10**9, ended_ns=3 * 10**9) for lane in range(lanes)]
        results[0].tables.add_changes([Change(1, Op.INSERT, ORDERS, 1, None, {"id": "1"})] * 3)
        results[0].resolutions["exists", "discarded"] += 1
        results[0].lag.add(np.array([40_000, 2_000_000]))
        progress.add(results)
        read, work = Interval(0, 10**7), Interval(5 * 10**8, 3 * 10**9)
        phases = phases_of(read, work, Interval(work.ended_ns, work.ended_ns + 10**6), results)
        progress.last_batch = AppliedBatch(position, 1, 3, lanes, phases, results)
        counted.progressed(progress)
    return counted


def everything() -> bytes:
    held = [consumer("shop", "a", oldest_at=NOW - timedelta(hours=2)), consumer("shop", "b", oldest_at=None)]
    one = status(
        errors=2,
        held=1,
        conflicts=4,
        resolved=5,
        runs=3,
        consumers=held,
        open_transactions=[OpenTransaction("x", NOW, 7)],
    )
    queued = [QueuedCount(ORDERS, "26787", "failed", 2), QueuedCount(None, "", "held", 1)]
    counted = replace(looked(one, queued), changes={(ORDERS, "insert"): 7, (ORDERS, "delete"): 2})
    return exposition([counted, looked(status("other"))], [worked()])


def test_promtool_finds_nothing_to_say() -> None:
    assert lint(everything()) == ""
    assert lint(exposition([])) == ""


def test_changes_of_all_runs_are_told_by_table_and_operation() -> None:
    found = series(everything(), "penstock_table_changes_total")
    assert found == {("delete", "public.orders"): 2, ("insert", "public.orders"): 7}


def test_what_is_on_hold_is_told() -> None:
    text = exposition([looked(status(errors=2, on_hold=1))])
    assert value(text, "penstock_error_queue_on_hold_transactions") == 1


def test_promtool_would_say_something() -> None:
    assert "no help text" in lint(b"penstock_x_count 1\n")


def test_a_pipeline_tells_where_it_stands() -> None:
    text = exposition([looked(status(runs=3, errors=2, held=1, conflicts=4, resolved=5))])

    assert value(text, "penstock_up") == value(text, "penstock_source_up") == value(text, "penstock_target_up") == 1
    assert value(text, "penstock_lag_seconds") == 60
    assert abs(value(text, "penstock_consistent_timestamp_seconds") - NOW.timestamp() + 60) < 1
    assert value(text, "penstock_backlog_changes") == 3
    assert value(text, "penstock_backlog_bytes") == 4096
    assert value(text, "penstock_transactions_total") == 7
    assert value(text, "penstock_changes_total") == 9
    assert value(text, "penstock_run_starts_total") == 3
    assert series(text, "penstock_error_queue_transactions") == {("failed",): 2, ("held",): 1}
    assert series(text, "penstock_conflicts_total") == {("resolved",): 5, ("queued",): 4}
    assert series(text, "penstock_tables") == {("copied",): 1, ("to_copy",): 0}
    assert series(text, "penstock_pipeline_state")["running",] == 1
    assert sum(series(text, "penstock_pipeline_state").values()) == 1


def test_a_killed_run_is_down_and_a_source_out_of_reach_hides_nothing_that_the_ledger_knows() -> None:
    killed = found(None, is_running=False, state=process(status=ProcessStatus.ENABLED), lost="no route")
    text = exposition([PipelineSample.of(killed)])

    assert value(text, "penstock_up") == value(text, "penstock_source_up") == 0
    assert value(text, "penstock_transactions_total") == 7
    assert series(text, "penstock_pipeline_state")["aborted",] == 1
    # Nobody can tell, and 0 would be a lie.
    for name in ("penstock_lag_seconds", "penstock_backlog_changes", "penstock_backlog_bytes"):
        assert series(text, name) == {}
    assert series(text, "penstock_tables") == {("copied",): 1}


def test_of_a_target_out_of_reach_nothing_else_is_told() -> None:
    text = exposition([PipelineSample("shop", None), looked(status("other"))])

    names = {
        s.labels["pipeline"]
        for f in text_string_to_metric_families(text.decode())
        for s in f.samples
        if s.name == "penstock_up"
    }
    assert names == {"other"}


def test_consumers_of_one_name_are_told_apart() -> None:
    text = everything()

    assert series(text, "penstock_log_held_bytes") == {("shop", "a"): 5, ("shop", "b"): 5}
    ages = series(text, "penstock_log_held_age_seconds")
    assert 7190 < ages["shop", "a"] < 7300
    assert ages["shop", "b"] == 0
    assert series(text, "penstock_error_queue_entries") == {
        ("26787", "failed", "public.orders"): 2,
        ("", "held", ""): 1,
    }


def test_a_run_counts_what_it_did() -> None:
    text = exposition([], [worked()])

    assert series(text, "penstock_run_changes_total") == {("insert", "public.orders"): 6}
    assert series(text, "penstock_run_transactions_total") == {("insert", "public.orders"): 2}
    assert series(text, "penstock_run_conflicts_total") == {("exists", "discarded"): 2}
    assert value(text, "penstock_run_lanes") == 2
    assert series(text, "penstock_run_lane_busy_seconds_total") == {("0",): 4, ("1",): 2}
    assert (value(text, "penstock_run_copy_chunks"), value(text, "penstock_run_copied_rows_total")) == (5, 1000)
    assert value(text, "penstock_run_retries_total") == 1
    phases = series(text, "penstock_run_batch_phase_seconds_sum")
    assert phases == {("read",): 0.02, ("plan",): 1.0, ("apply",): 4.0, ("complete",): 0.002}
    counts = series(text, "penstock_run_batch_phase_seconds_bucket")
    assert (counts["1.0", "apply"], counts["2.5", "apply"], counts["+Inf", "apply"]) == (0, 2, 2)
    lag = series(text, "penstock_run_transaction_lag_seconds_bucket")
    assert (lag["0.025",], lag["0.05",], lag["1.0",], lag["2.5",]) == (0, 2, 2, 4)


def test_names_of_tables_cannot_write_metrics_of_their_own() -> None:
    hostile = TableName("public", 'a"} 1\npenstock_up{pipeline="x')
    text = exposition([looked(status(), [QueuedCount(hostile, "1", "failed", 1)])])

    assert lint(text) == ""
    assert value(text, "penstock_up") == 1
    ((_, _, table),) = series(text, "penstock_error_queue_entries")
    assert table == str(hostile)


def test_a_storm_of_errors_makes_a_bounded_number_of_series() -> None:
    counted = RunMetrics("shop")
    for number in range(3000):
        counted.queued(_entry(TableName("public", f"t{number}")))  # type: ignore[arg-type]

    found_: Sequence[float] = list(series(exposition([], [counted]), "penstock_run_errors_total").values())
    assert len(found_) == 1001
    assert sum(found_) == 3000


def _entry(table: TableName) -> object:
    class Entry:
        error_number, error_code = 26787, None

    Entry.table = table  # type: ignore[attr-defined]
    return Entry()
