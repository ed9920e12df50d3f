"""Options of `run` for what watches over it: the page, metrics, traces, lineage."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.web import PageOptions, WebOption, prepared, served
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from opentelemetry.sdk.trace.export import SpanExporter

    from penstock.apply.listener import RunObserver
    from penstock.config import PipelineConfig
    from penstock.web.server import Door

_METRICS = "--metrics"


@dataclass(frozen=True)
class WatchOptions(PageOptions):
    """What is to watch over a run."""

    web: WebOption = None
    metrics: Annotated[
        str | None,
        typer.Option(
            _METRICS,
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus at /metrics of this address; :9187 is this machine alone.",
        ),
    ] = None
    traces: Annotated[
        bool, typer.Option("--traces", help="Send a trace of each batch to OpenTelemetry, as the variables OTEL_* say.")
    ] = False
    lineage: Annotated[
        bool,
        typer.Option("--lineage", help="Send events to OpenLineage, as its own variables or openlineage.yml say."),
    ] = False

    @contextmanager
    def prepared(self) -> Iterator[Watch]:
        """Take what the options need, before anything is started; give it back at the end of the block.

        Raises:
            ConfigError: A library is not installed, or a port is taken.
        """
        with ExitStack() as stack:
            listening = door = None
            if self.web is not None:
                door = stack.enter_context(prepared(self.web, self, option="--web"))
            elif self.token_file is not None or self.read_without_token:
                raise ConfigError("--token-file and --read-without-token go with --web")
            elif self.host_name and self.metrics is None:
                raise ConfigError("--host-name goes with --web or --metrics")
            if self.metrics is not None:
                # Its libraries are an extra's.
                from penstock.metrics import Address

                address = Address.parse(self.metrics, option=_METRICS)
                listening = stack.enter_context(address.listen(option=_METRICS))
            exporter = client = None
            if self.traces:
                from penstock.observe.traces import exporter_of_environment

                exporter = exporter_of_environment()
            if self.lineage:
                from penstock.observe.lineage import client_of_environment

                client = client_of_environment()
            yield Watch(self, listening, door, exporter, client, stack)


@dataclass
class Watch:
    """What watches over a run, ready to begin."""

    _options: WatchOptions
    _metrics: socket.socket | None
    _door: Door | None
    _exporter: SpanExporter | None
    _client: OpenLineageClient | None
    _stack: ExitStack = field(default_factory=ExitStack)

    def begin(self, config: PipelineConfig) -> list[RunObserver]:
        """Begin to watch; returns what is to hear of the run.

        Not before Spark was begun: it forks a process, which threads do not survive.
        """
        observers: list[RunObserver] = []
        counted = None
        if self._metrics is not None or self._door is not None:
            from penstock.metrics import RunMetrics

            counted = RunMetrics(config.name)
            observers.append(counted)
        if self._door is not None:
            self._stack.enter_context(served(self._door, [config], [] if counted is None else [counted]))
        if self._metrics is not None and counted is not None:
            from penstock.metrics import Address, sample, serving
            from penstock.wiring import open_pipeline

            # Another one of the same file: it shares no connection with the run, and starts no Spark.
            looked_at = open_pipeline(config)
            hosts = [Address.parse(self._options.metrics or "", option=_METRICS).host, *(self._options.host_name or ())]
            self._stack.enter_context(serving(self._metrics, lambda: [sample(looked_at)], [counted], hosts))
        if self._options.traces:
            from penstock.observe.traces import Traces, provider_of

            observers.append(Traces(config.name, provider_of(self._exporter)))
        if self._client is not None:
            observers.append(_lineage(config, self._client))
        return observers


def _lineage(config: PipelineConfig, client: OpenLineageClient) -> RunObserver:
    from penstock.observe.lineage import Lineage, TablesRead
    from penstock.observe.places import source_place, target_place
    from penstock.wiring import open_pipeline

    looked_at = open_pipeline(config)
    return Lineage(
        config.name,
        client,
        source=source_place(config),
        target=target_place(config),
        tables=lambda: TablesRead(*looked_at.captured_tables()),
    )
