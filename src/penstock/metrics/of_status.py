"""Metrics that the `Status` of a pipeline tells, whoever asks for it: of all runs, and of the source's log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from penstock import __version__
from penstock.history import ConsumerState
from penstock.metrics.sample import PipelineSample
from penstock.pipeline.status import PipelineState, Status

_PIPELINE = ["pipeline"]
_CONSUMER = ["pipeline", "consumer", "consumer_id"]

_GAUGES: Sequence[tuple[str, str, Callable[[Status], float | None]]] = (
    ("penstock_up", "Whether a run of the pipeline is alive.", lambda s: s.state is PipelineState.RUNNING),
    ("penstock_source_up", "Whether the source could be asked.", lambda s: s.source_lost is None),
    ("penstock_refused", "Whether the next run would be refused.", lambda s: s.refused is not None),
    (
        "penstock_lag_seconds",
        "How far the target is behind the source; 0 while nothing waits, absent where nobody can tell.",
        lambda s: s.lag_s,
    ),
    (
        "penstock_consistent_timestamp_seconds",
        "Commit time at the source up to which everything captured is applied, but for the error queue.",
        lambda s: _unix(s.consistent_at),
    ),
    (
        "penstock_backlog_changes",
        "Changes in the source's log that are not applied yet.",
        lambda s: None if s.source_lost else s.backlog_changes,
    ),
    (
        "penstock_backlog_bytes",
        "Disk that the source's log takes, or what waits of it.",
        lambda s: None if s.source_lost else s.backlog_bytes,
    ),
    ("penstock_low_watermark", "Position up to which everything is applied.", lambda s: s.low_watermark),
    ("penstock_high_watermark", "Position beyond which nothing is applied.", lambda s: s.high_watermark),
    (
        "penstock_error_queue_on_hold_transactions",
        "Transactions in the error queue that a person has put on hold; their state counts them, too.",
        lambda s: s.on_hold,
    ),
    (
        "penstock_attention",
        "Faults that a person has to fix; `penstock status` names them.",
        lambda s: len(s.attention),
    ),
    (
        "penstock_log_open_transactions",
        "Transactions at the source that have been open for 15 minutes.",
        lambda s: None if s.source_lost else len(s.open_transactions),
    ),
    (
        "penstock_log_open_transactions_bytes",
        "Disk of freed log rows that these keep from being used again.",
        lambda s: None if s.source_lost else max((one.size_bytes for one in s.open_transactions), default=0),
    ),
)
"""Of each pipeline one value; None leaves it out."""

_COUNTERS: Sequence[tuple[str, str, Callable[[Status], float]]] = (
    ("penstock_transactions", "Transactions applied, or published, by all runs.", lambda s: s.transactions),
    ("penstock_changes", "Changes applied, or published, by all runs.", lambda s: s.changes),
    ("penstock_ddl", "How often DDL of the source was carried out at the target.", lambda s: s.ddl),
    (
        "penstock_run_starts",
        "How often a run became the one of its pipeline: starts, and connections lost and made again.",
        lambda s: s.runs,
    ),
)

_CONSUMERS: Sequence[tuple[str, str, Callable[[ConsumerState, float], float]]] = (
    ("penstock_log_held_bytes", "Disk that the source's log keeps for a consumer.", lambda c, _: c.size_bytes),
    (
        "penstock_log_held_transactions",
        "Transactions that the source's log keeps for a consumer.",
        lambda c, _: c.transactions,
    ),
    (
        "penstock_log_held_age_seconds",
        "Age of the oldest change that the source's log keeps for a consumer; 0 where it keeps none.",
        lambda c, now: max(0.0, now - (_unix(c.oldest_at) or now)),
    ),
    (
        "penstock_log_consumer_seen_timestamp_seconds",
        "When a consumer of the source's log was last seen.",
        lambda c, _: c.seen_at.timestamp(),
    ),
)


def status_families(samples: Sequence[PipelineSample]) -> Iterator[Metric]:
    """Yield the metrics of pipelines; one that cannot be asked has `penstock_target_up 0`, and no more."""
    build = InfoMetricFamily("penstock_build", "The version of Penstock that answers.")
    build.add_metric([], {"version": __version__})
    yield build
    yield from _of_samples(samples)
    asked = [(one.status, one.sampled_at) for one in samples if one.status is not None]
    found = [status for status, _ in asked]
    yield _states(found)
    for name, help_, value in _GAUGES:
        gauge = GaugeMetricFamily(name, help_, labels=_PIPELINE)
        for status in found:
            number = value(status)
            if number is not None:
                gauge.add_metric([status.pipeline], float(number))
        yield gauge
    for name, help_, count in _COUNTERS:
        counter = CounterMetricFamily(name, help_, labels=_PIPELINE)
        for status in found:
            counter.add_metric([status.pipeline], float(count(status)))
        yield counter
    yield from _labelled(found)
    for name, help_, of in _CONSUMERS:
        gauge = GaugeMetricFamily(name, help_, labels=_CONSUMER)
        for status, now in asked:
            for held in status.consumers:
                gauge.add_metric([status.pipeline, held.consumer.name, held.consumer.id], of(held, now))
        yield gauge


def _of_samples(samples: Sequence[PipelineSample]) -> Iterator[Metric]:
    target = GaugeMetricFamily(
        "penstock_target_up", "Whether the target, or the sink, could be asked.", labels=_PIPELINE
    )
    taken = GaugeMetricFamily(
        "penstock_sample_timestamp_seconds", "When the databases were asked for these metrics.", labels=_PIPELINE
    )
    took = GaugeMetricFamily("penstock_sample_duration_seconds", "How long they took to answer.", labels=_PIPELINE)
    queue = GaugeMetricFamily(
        "penstock_error_queue_entries",
        "Transactions in the error queue by table and error; those in state held wait behind others.",
        labels=["pipeline", "table", "error", "state"],
    )
    changes = CounterMetricFamily(
        "penstock_table_changes",
        "Changes that all runs have applied; those of a batch that was broken off may be missing.",
        labels=["pipeline", "table", "operation"],
    )
    for one in samples:
        for (of, op), number in one.changes.items():
            changes.add_metric([one.pipeline, str(of), op], number)
        target.add_metric([one.pipeline], float(one.status is not None))
        taken.add_metric([one.pipeline], one.sampled_at)
        took.add_metric([one.pipeline], one.took_s)
        for found in one.queued:
            table = "" if found.table is None else str(found.table)
            queue.add_metric([one.pipeline, table, found.error, found.state], found.entries)
    yield from (target, taken, took, queue, changes)


def _states(found: Sequence[Status]) -> Metric:
    states = GaugeMetricFamily(
        "penstock_pipeline_state", "1 for the state that the pipeline is in.", labels=["pipeline", "state"]
    )
    for status in found:
        for state in PipelineState:
            states.add_metric([status.pipeline, state.value], float(status.state is state))
    return states


def _labelled(found: Sequence[Status]) -> Iterator[Metric]:
    queue = GaugeMetricFamily(
        "penstock_error_queue_transactions",
        "Transactions in the error queue: failed, and held, which wait behind these.",
        labels=["pipeline", "state"],
    )
    tables = GaugeMetricFamily(
        "penstock_tables",
        "Tables whose first copy is complete, and those that wait for it.",
        labels=["pipeline", "state"],
    )
    conflicts = CounterMetricFamily(
        "penstock_conflicts", "Conflicts of all runs, by what became of them.", labels=["pipeline", "outcome"]
    )
    for status in found:
        queue.add_metric([status.pipeline, "failed"], status.errors)
        queue.add_metric([status.pipeline, "held"], status.held)
        tables.add_metric([status.pipeline, "copied"], status.copied)
        # While the source cannot be asked, nobody knows what is still to be copied.
        if status.source_lost is None:
            tables.add_metric([status.pipeline, "to_copy"], status.to_copy)
        conflicts.add_metric([status.pipeline, "resolved"], status.resolved)
        conflicts.add_metric([status.pipeline, "queued"], status.conflicts)
    yield from (queue, tables, conflicts)


def _unix(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
