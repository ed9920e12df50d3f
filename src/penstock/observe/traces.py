"""Spans of batches for OpenTelemetry, set up by its own environment variables `OTEL_*`.

A batch's spans are made when it is done, from times that were taken anyway: nothing is added to its way. Sending is the
work of the SDK's own thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from penstock.apply.batch import AppliedBatch, Interval, Phase
from penstock.apply.lane import LaneResult
from penstock.apply.listener import RunObserver
from penstock.apply.progress import Progress
from penstock.errors import ConfigError, PenstockError
from penstock.events import Event, tell

try:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
    from opentelemetry.trace import Span, StatusCode, set_span_in_context
except ImportError as exc:
    raise ConfigError(f"traces need {exc.name}, which is not installed", do="pip install 'penstock[observe]'") from exc

_END_S = 5.0
"""The end of a run waits no longer for the last spans."""

_SPAN_OF = {Phase.READ: "read", Phase.PLAN: "plan", Phase.APPLY: "lanes", Phase.COMPLETE: "complete"}


class Traces(RunObserver):
    """Makes a span of each batch, with one below it for each phase, and below `lanes` one for each lane."""

    def __init__(self, pipeline: str, provider: TracerProvider) -> None:
        """Trace a run of a pipeline; `provider` is shut down at its end."""
        self._pipeline = pipeline
        self._provider = provider
        self._tracer = provider.get_tracer("penstock")
        self._copy_began_ns = 0
        self._copied_rows = 0

    def copying(self, chunks: int, tables: int) -> None:
        """A first copy begins."""
        if not self._copy_began_ns:
            self._copy_began_ns, self._copied_rows = time.time_ns(), 0

    def copied(self, chunks: int, rows: int) -> None:
        """Some of it is committed."""
        self._copied_rows += rows

    def following(self) -> None:
        """The first copy, if there was one, is done."""
        if self._copy_began_ns:
            span = self._span("copy", Interval(self._copy_began_ns, time.time_ns()))
            span.set_attribute("penstock.rows", self._copied_rows)
            span.end()
            self._copy_began_ns = 0

    def progressed(self, progress: Progress) -> None:
        """A batch is done."""
        if progress.last_batch is not None:
            self._batch(progress.last_batch)

    def finished(self, progress: Progress, *, is_stopped: bool) -> None:
        """The run is over."""
        self._shut_down()

    def failed(self, error: PenstockError) -> None:
        """An error has ended the run: it is a span of its own, for no batch is done that it would belong to."""
        now = time.time_ns()
        span = self._span("failure", Interval(now, now))
        span.set_status(StatusCode.ERROR, str(error))
        span.set_attribute("error.type", type(error).__name__)
        span.end(now)
        self._shut_down()

    def _batch(self, batch: AppliedBatch) -> None:
        whole = Interval(batch.phases[Phase.READ].began_ns, batch.phases[Phase.COMPLETE].ended_ns)
        top = self._span("batch", whole)
        top.set_attribute("penstock.position", int(batch.position))
        top.set_attribute("penstock.transactions", batch.transactions)
        top.set_attribute("penstock.changes", batch.changes)
        top.set_attribute("penstock.lanes", len(batch.results))
        for phase, interval in batch.phases.items():
            span = self._span(_SPAN_OF[phase], interval, top)
            if phase is Phase.APPLY:
                for result in batch.results:
                    self._lane(result, interval, span)
            span.end(max(interval.began_ns, interval.ended_ns))
        top.end(whole.ended_ns)

    def _lane(self, result: LaneResult, within: Interval, parent: Span) -> None:
        if not result.began_ns:
            # What publishes takes no times of its own.
            return
        # A lane's machine may have another clock.
        began_ns = min(max(result.began_ns, within.began_ns), within.ended_ns)
        ended_ns = min(max(result.ended_ns, began_ns), within.ended_ns)
        span = self._span("lane", Interval(began_ns, ended_ns), parent)
        span.set_attribute("penstock.lane", result.lane)
        span.set_attribute("penstock.transactions", result.transactions)
        span.set_attribute("penstock.changes", result.changes)
        span.set_attribute("penstock.errors", result.errors)
        span.set_attribute("penstock.conflicts", result.conflicts)
        span.end(ended_ns)

    def _span(self, name: str, interval: Interval, parent: Span | None = None) -> Span:
        context = None if parent is None else set_span_in_context(parent)
        attributes = {"penstock.pipeline": self._pipeline}
        return self._tracer.start_span(name, context, attributes=attributes, start_time=interval.began_ns)

    def _shut_down(self) -> None:
        # A collector that is down would keep the end of the run waiting.
        ending = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(_END_S)


def provider_of(exporter: SpanExporter | None) -> TracerProvider:
    """Make what spans go to `exporter` by, as the variables `OTEL_*` say. It starts a thread."""
    # An own service name comes before ours.
    service = os.environ.get("OTEL_SERVICE_NAME", "").strip()
    named_by_resource = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    own = {} if service or named_by_resource else {SERVICE_NAME: "penstock"}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    if exporter is not None:
        _warn_once("opentelemetry", "traces cannot be sent; see OTEL_EXPORTER_OTLP_ENDPOINT")
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def exporter_of_environment() -> SpanExporter | None:
    """Make what the variables `OTEL_*` ask for; without `OTEL_TRACES_EXPORTER`, spans go by OTLP over HTTP.

    Returns:
        None where they ask for none.

    Raises:
        ConfigError: They ask for an exporter, or a protocol, that does not come with Penstock.
    """
    named = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    match named:
        case "none":
            return None
        case "console":
            return ConsoleSpanExporter()
        case "otlp":
            protocol = _protocol()
            if protocol != "http/protobuf":
                raise ConfigError(
                    f"--traces: OTEL_EXPORTER_OTLP_PROTOCOL {protocol!r} is not supported", do="set it to http/protobuf"
                )
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter()
        case _:
            raise ConfigError(
                f"--traces: OTEL_TRACES_EXPORTER {named!r} is not supported", do="set otlp, console or none"
            )


def _protocol() -> str:
    general = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip()
    return os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "").strip() or general or "http/protobuf"


def _warn_once(logger: str, text: str) -> None:
    """Say once what a library logs again and again, and whatever else it would say, in our words."""
    theirs = logging.getLogger(logger)
    theirs.handlers = [_Once(text)]
    theirs.propagate = False


class _Once(logging.Handler):
    def __init__(self, text: str) -> None:
        super().__init__(logging.WARNING)
        self._text = text
        self._is_said = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._is_said:
            self._is_said = True
            tell(Event.NOTE, self._text, level=logging.WARNING)
