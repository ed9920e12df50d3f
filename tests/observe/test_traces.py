"""Spans of batches, in memory and at a real receiver of OTLP over HTTP."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from penstock.apply.batch import AppliedBatch, Interval, phases_of
from penstock.apply.lane import LaneResult
from penstock.apply.progress import Progress
from penstock.errors import ConfigError, OperatorError
from penstock.observe.traces import Traces, exporter_of_environment
from penstock.position import Scn
from tests.alerts.hook import Hook, serving
from tests.lab import Lab
from tests.program import Program


@pytest.fixture
def collector() -> Iterator[Hook]:
    with serving() as made:
        yield made


def batch(*, skew_ns: int = 0) -> Progress:
    """One of two lanes, read from 0 to 10, planned until 30, applied until 90, completed at 95."""
    results = [
        LaneResult(lane=lane, transactions=2, changes=5, began_ns=30 + lane * 5 + skew_ns, ended_ns=80 + skew_ns)
        for lane in range(2)
    ]
    phases = phases_of(Interval(0, 10), Interval(12, 90), Interval(90, 95), results)
    return Progress(Scn(7), last_batch=AppliedBatch(Scn(7), 4, 10, 2, phases, results))


def traced(*progress: Progress) -> list[ReadableSpan]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = Traces("shop", provider)
    for one in progress:
        traces.progressed(one)
    return list(exporter.get_finished_spans())


def test_a_batch_is_a_span_with_its_phases_and_lanes_below_it() -> None:
    spans = traced(batch())

    times = {(span.name, span.attributes.get("penstock.lane")): (span.start_time, span.end_time) for span in spans}  # type: ignore[union-attr]
    assert times == {
        ("batch", None): (0, 95),
        ("read", None): (0, 10),
        ("plan", None): (12, 30),
        ("lanes", None): (30, 90),
        ("lane", 0): (30, 80),
        ("lane", 1): (35, 80),
        ("complete", None): (90, 95),
    }
    by_id = {span.context.span_id: span.name for span in spans}
    parents = {(span.name, by_id[span.parent.span_id] if span.parent else None) for span in spans}
    assert parents == {
        ("batch", None),
        ("read", "batch"),
        ("plan", "batch"),
        ("lanes", "batch"),
        ("complete", "batch"),
        ("lane", "lanes"),
    }
    (top,) = [span for span in spans if span.name == "batch"]
    assert dict(top.attributes or {}) == {
        "penstock.pipeline": "shop",
        "penstock.position": 7,
        "penstock.transactions": 4,
        "penstock.changes": 10,
        "penstock.lanes": 2,
    }


@pytest.mark.parametrize("skew_ns", [-1000, 1000])
def test_a_machine_with_another_clock_leaves_no_span_outside_its_batch(skew_ns: int) -> None:
    for span in traced(batch(skew_ns=skew_ns)):
        assert span.start_time is not None
        assert span.end_time is not None
        assert 0 <= span.start_time <= span.end_time <= 95


def test_a_position_without_transactions_is_no_batch() -> None:
    assert traced(Progress(Scn(7))) == []


def test_an_error_that_ends_a_run_is_a_span() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Traces("shop", provider).failed(OperatorError("the disk is full"))
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.status.status_code) == ("failure", StatusCode.ERROR)
    assert span.status.description == "the disk is full"


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]
)
def test_an_exporter_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"--traces: {variable} '{value}' is not supported"):
        exporter_of_environment()


def received(collector: Hook) -> list[tuple[str, str]]:
    """The spans that came, each with the name of its service."""
    found = []
    for one in collector.requests:
        body = gzip.decompress(one.body) if one.headers.get("Content-Encoding") == "gzip" else one.body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            (service,) = [a.value.string_value for a in resource.resource.attributes if a.key == "service.name"]
            found += [(service, span.name) for scope in resource.scope_spans for span in scope.spans]
    return found


def test_a_real_run_sends_its_spans_by_the_standard_variables(lab: Lab, program: Program, collector: Hook) -> None:
    """Takes some seconds: a run with Spark."""
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY, n int); INSERT INTO item VALUES (1, 1)")
    assert program("setup").code == 0
    assert program("run", "--until-caught-up").code == 0
    lab.source.execute("UPDATE item SET n = 2")
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url.partition("/hook")[0], "OTEL_SERVICE_NAME": "shop copy"}

    done = program("run", "--until-caught-up", "--traces", env=endpoint)

    assert done.code == 0, done.err
    assert {one.path for one in collector.requests} == {"/v1/traces"}
    names = [name for service, name in received(collector) if service == "shop copy"]
    assert sorted(names) == ["batch", "complete", "lane", "lanes", "plan", "read"]
    lab.assert_identical("item")


def test_a_collector_that_is_down_is_warned_of_once_and_ends_nothing(lab: Lab, program: Program) -> None:
    """Takes some seconds: a run with Spark."""
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY, n int)")
    assert program("setup").code == 0
    down = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}

    done = program("run", "--until-caught-up", "--traces", env=down)

    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    assert done.err.count("traces cannot be sent") <= 1
