"""Events for OpenLineage: what a run reads and writes, table by table; set up by OpenLineage's own configuration."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.apply.listener import RunObserver
from penstock.apply.progress import Progress
from penstock.errors import ConfigError, PenstockError
from penstock.events import Event, tell
from penstock.observe.places import DatasetPlace

if TYPE_CHECKING:
    from penstock.schema import TableSchema

try:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import (
        DatasetFacet,
        RunFacet,
        error_message_run,
        job_type_job,
        processing_engine_run,
        schema_dataset,
    )
    from openlineage.client.transport.console import ConsoleTransport
    from openlineage.client.uuid import generate_new_uuid
except ImportError as exc:
    raise ConfigError(
        f"lineage needs {exc.name}, which is not installed", do="pip install 'penstock[observe]'"
    ) from exc

_PRODUCER = f"urn:penstock:{__version__}"
_NAMESPACE = "penstock"
_MOST_WAITING = 100
_END_S = 10.0
"""The end of a run waits no longer for its last event."""


@dataclass(frozen=True)
class TablesRead:
    """The tables that a run reads, as the source has them, and those that it writes."""

    source: Sequence[TableSchema]
    target: Sequence[TableSchema]


class Lineage(RunObserver):
    """Tells of a run: START, RUNNING with every table each time they are known anew, then COMPLETE or FAIL."""

    def __init__(
        self,
        pipeline: str,
        client: OpenLineageClient,
        *,
        source: DatasetPlace,
        target: DatasetPlace,
        tables: Callable[[], TablesRead],
        namespace: str = _NAMESPACE,
    ) -> None:
        """Tell `client` of one run.

        Args:
            tables: Asks which tables there are; it is called on the thread that sends.
            namespace: Of the job, which has the pipeline's name.
        """
        self._client = client
        self._source = source
        self._target = target
        self._tables = tables
        self._job = Job(
            namespace,
            pipeline,
            facets={"jobType": job_type_job.JobTypeJobFacet("STREAMING", "PENSTOCK", "PIPELINE", producer=_PRODUCER)},
        )
        self._run_id = str(generate_new_uuid())
        self._known = TablesRead([], [])
        self._to_do: queue.Queue[Callable[[], None] | None] = queue.Queue(_MOST_WAITING)
        self._has_warned = False
        self._thread: threading.Thread | None = None

    def began(self) -> None:
        """The run begins."""
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)
        self._thread.start()
        self._send(RunState.START)

    def following(self) -> None:
        """Everything is copied, and the tables are known; they may be others than before."""
        self._later(self._look)
        self._send(RunState.RUNNING)

    def finished(self, progress: Progress, *, is_stopped: bool) -> None:
        """The run has ended as it should; a stream that is told to stop has done what it was to do."""
        self._send(RunState.COMPLETE)
        self._end()

    def failed(self, error: PenstockError) -> None:
        """An error has ended the run."""
        self._send(RunState.FAIL, error)
        self._end()

    def _look(self) -> None:
        self._known = self._tables()

    def _send(self, state: RunState, error: PenstockError | None = None) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._later(lambda: self._client.emit(self._event(state, at, error)))

    def _event(self, state: RunState, at: str, error: PenstockError | None) -> RunEvent:
        engine = processing_engine_run.ProcessingEngineRunFacet(__version__, "Penstock", producer=_PRODUCER)
        facets: dict[str, RunFacet] = {"processing_engine": engine}
        if error is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(str(error), "Python", producer=_PRODUCER)
        return RunEvent(
            eventType=state,
            eventTime=at,
            producer=_PRODUCER,
            run=Run(self._run_id, facets=facets),
            job=self._job,
            inputs=[
                InputDataset(self._source.namespace, self._source.name(one.name), facets=_schema(one))
                for one in self._known.source
            ],
            outputs=[
                OutputDataset(self._target.namespace, self._target.name(one.name), facets=_schema(one))
                for one in self._known.target
            ],
        )

    def _later(self, do: Callable[[], None] | None) -> None:
        try:
            self._to_do.put_nowait(do)
        except queue.Full:
            # Whoever takes events is down, which was warned of; the run goes on.
            return

    def _end(self) -> None:
        self._later(None)
        if self._thread is not None:
            self._thread.join(_END_S)

    def _work(self) -> None:
        while (do := self._to_do.get()) is not None:
            try:
                do()
            except Exception as exc:
                self._warn(exc)
        self._client.close(timeout=_END_S)

    def _warn(self, exc: Exception) -> None:
        """Warn once; a client's error may hold the url that it was given, with a key."""
        if self._has_warned:
            return
        self._has_warned = True
        reason = str(exc) if isinstance(exc, PenstockError) else type(exc).__name__
        tell(Event.NOTE, f"an OpenLineage event was not delivered: {reason}", level=logging.WARNING)


def client_of_environment() -> OpenLineageClient:
    """Make what OpenLineage's variables, or its file, ask for.

    Raises:
        ConfigError: They name no transport, or one that cannot be made.
    """
    theirs = logging.getLogger("openlineage")
    theirs.addHandler(logging.NullHandler())
    theirs.propagate = False
    try:
        client = OpenLineageClient()
    except Exception as exc:
        raise ConfigError(f"--lineage: OpenLineage's configuration cannot be used: {type(exc).__name__}") from exc
    if isinstance(client.transport, ConsoleTransport) and not client.config.transport:
        raise ConfigError(
            "--lineage: OpenLineage is not configured",
            do="set OPENLINEAGE_URL, or OPENLINEAGE_CONFIG to its openlineage.yml",
        )
    return client


def _schema(table: TableSchema) -> dict[str, DatasetFacet]:
    fields = [
        schema_dataset.SchemaDatasetFacetFields(column.name, column.type, ordinal_position=number)
        for number, column in enumerate(table.columns, 1)
    ]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields, producer=_PRODUCER)}
