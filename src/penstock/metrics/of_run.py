"""Metrics that a run of this process has counted: they begin at zero with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from penstock.metrics.run_metrics import RunCounts, RunMetrics, cumulated, lag_histogram


def run_families(runs: Sequence[RunMetrics]) -> Iterator[Metric]:
    """Yield the metrics of the runs of this process, each under the name of its pipeline."""
    start = GaugeMetricFamily(
        "penstock_run_start_timestamp_seconds", "When the run of this process began.", labels=["pipeline"]
    )
    for one in runs:
        start.add_metric([one.pipeline], one.began_at)
    yield start
    found = [(one.pipeline, one.counts()) for one in runs]
    yield from _applied(found)
    yield from _batches(found)
    yield from _copies(found)


def _applied(found: Sequence[tuple[str, RunCounts]]) -> Iterator[Metric]:
    by_table = ["pipeline", "table", "operation"]
    changes = CounterMetricFamily(
        "penstock_run_changes", "Changes that the run has applied, or published.", labels=by_table
    )
    transactions = CounterMetricFamily(
        "penstock_run_transactions",
        "Transactions that the run has applied, or published, with such a change; one may count in several series.",
        labels=by_table,
    )
    conflicts = CounterMetricFamily(
        "penstock_run_conflicts",
        "Conflicts that the run has met, and what became of them; queued: the transaction went to the error queue.",
        labels=["pipeline", "kind", "resolution"],
    )
    errors = CounterMetricFamily(
        "penstock_run_errors", "Transactions put into the error queue.", labels=["pipeline", "table", "error"]
    )
    for name, counts in found:
        for (table, op), number in counts.changes.items():
            changes.add_metric([name, str(table), op], number)
        for (table, op), number in counts.transactions.items():
            transactions.add_metric([name, str(table), op], number)
        for (met, came), number in counts.resolutions.items():
            conflicts.add_metric([name, met, came], number)
        for (where, error), number in counts.errors.items():
            errors.add_metric([name, where, error], number)
    yield from (changes, transactions, conflicts, errors)


def _batches(found: Sequence[tuple[str, RunCounts]]) -> Iterator[Metric]:
    phases = HistogramMetricFamily(
        "penstock_run_batch_phase_seconds", "How long batches took, phase by phase.", labels=["pipeline", "phase"]
    )
    lag = HistogramMetricFamily(
        "penstock_run_transaction_lag_seconds",
        "From commit at the source to commit at the target, of transactions committed during the run; off by 5 %.",
        labels=["pipeline"],
    )
    lanes = GaugeMetricFamily("penstock_run_lanes", "Lanes that the last batch was applied in.", labels=["pipeline"])
    busy = CounterMetricFamily(
        "penstock_run_lane_busy_seconds",
        "How long lanes were at work; the sum of their rates is how many are, on average.",
        labels=["pipeline", "lane"],
    )
    for name, counts in found:
        for phase, one in counts.phases.items():
            phases.add_metric([name, phase.value], buckets=cumulated(one), sum_value=one.total_s)
        coarse = lag_histogram(counts.lag)
        lag.add_metric([name], buckets=cumulated(coarse), sum_value=coarse.total_s)
        lanes.add_metric([name], counts.lanes)
        for lane, seconds in counts.busy_s.items():
            busy.add_metric([name, str(lane)], seconds)
    yield from (phases, lag, lanes, busy)


def _copies(found: Sequence[tuple[str, RunCounts]]) -> Iterator[Metric]:
    names = ["pipeline"]
    chunks = GaugeMetricFamily(
        "penstock_run_copy_chunks", "Chunks of the run's first copies, copied or not.", labels=names
    )
    copied = CounterMetricFamily("penstock_run_copied_chunks", "Chunks that the run has copied.", labels=names)
    rows = CounterMetricFamily("penstock_run_copied_rows", "Rows that the run has copied.", labels=names)
    retries = CounterMetricFamily("penstock_run_retries", "How often a server was found out of reach.", labels=names)
    for name, counts in found:
        chunks.add_metric([name], counts.chunks)
        copied.add_metric([name], counts.copied_chunks)
        rows.add_metric([name], counts.copied_rows)
        retries.add_metric([name], counts.retries)
    yield from (chunks, copied, rows, retries)
