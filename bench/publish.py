"""Publishing events and messages: how many changes one task tells in a second, to a broker here and to files."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.kafka import jars
from tests.kafka.broker import KafkaBroker
from tests.kafka.registry import SchemaRegistry

from bench.files import changes
from penstock import change as c
from penstock.change import TableName
from penstock.formats.debezium.avro_writer import AvroPacking
from penstock.formats.debezium.writer import EventSettings, JsonPacking, Packing
from penstock.position import START, Scn
from penstock.schema import Column, Dictionary, TableSchema, Unique
from penstock.schema_registry import Registry
from penstock.sinks.dbwatcher.encoder import MessageFormat, MessageSettings
from penstock.sinks.dbwatcher.folder import MessageFolder
from penstock.sinks.events.encoder import EventFormat
from penstock.sinks.events.encoding import RecordFormat
from penstock.sinks.events.files import Folder
from penstock.sinks.events.kafka import Cluster
from penstock.sinks.events.publisher import EventDestination, begin_run, make_position
from penstock.sinks.events.task import EventTask
from penstock.storage import LocalStorage
from penstock.stream import Slice

_BATCHES = 3

_TABLE = TableSchema(
    TableName("public", "pgbench_accounts"),
    (
        Column("aid", "integer", "integer", is_nullable=False),
        Column("bid", "integer", "integer"),
        Column("abalance", "integer", "integer"),
        Column("filler", "character(84)", "character"),
    ),
    Unique("pk", ("aid",), ("aid",)),
    version=1,
)


def measure() -> Iterator[dict[str, Any]]:
    """Publish updates in every form; yields what was measured."""
    with (
        KafkaBroker(jars.broker_path(jars.fetch(jars.folder()))) as broker,
        SchemaRegistry() as registry,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
    ):
        packings: dict[str, Packing] = {
            "JSON": JsonPacking(with_schemas=False),
            "JSON with schemas": JsonPacking(),
            "Avro": AvroPacking(Registry(registry.url).register),
        }
        for number, (form, packing) in enumerate(packings.items()):
            cluster = Cluster({"bootstrap.servers": broker.address}, f"bench{number}")
            settings = EventSettings(cluster.pipeline, "bench", packing=packing)
            topics = [cluster.position_topic, settings.transaction_topic, settings.topic_of(_TABLE.name)]
            cluster.make_topics(topics)
            yield _measure(f"to Kafka, {form}", cluster, EventFormat(settings))
        plain = EventSettings("bench", "bench", packing=packings["JSON"])
        yield _measure("to files, JSON", Folder(LocalStorage(Path(folder) / "events"), "bench"), EventFormat(plain))
        messages = MessageFormat(MessageSettings("bench.dbwatcher"))
        cluster = Cluster({"bootstrap.servers": broker.address}, "bench_dbwatcher")
        cluster.make_topics([cluster.position_topic, "bench.dbwatcher"], in_order=["bench.dbwatcher"])
        yield _measure("to Kafka, DbWatcher messages", cluster, messages)
        yield _measure(
            "to files, DbWatcher messages", MessageFolder(LocalStorage(Path(folder) / "xml"), "bench"), messages
        )


def _measure(system: str, log: EventDestination, form: RecordFormat) -> dict[str, Any]:
    make_position(log, "bench")
    begun = begin_run(log, "bench")
    task = EventTask(log, begun.published_state.epoch, form.encoder(Dictionary([_TABLE]), {}))
    batches = [changes(1 + number * 5_000) for number in range(_BATCHES)]
    rows = pa.Table.from_batches(batches).combine_chunks()
    part = _slice_of(rows)
    began = time.monotonic()
    task.publish(part, _Given(rows), begun.token)
    return {"workload": "publish", "system": system, "rate": len(rows) / (time.monotonic() - began)}


@dataclass(frozen=True)
class _Given:
    """A reader of rows that are there."""

    rows: pa.Table
    leaves_out: bool = False

    def open(self) -> None:
        """Nothing is opened."""

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        scns = self.rows[c.COMMIT_SCN].to_numpy()
        first, end = np.searchsorted(scns, [part.commit_scns[0], part.commit_scns[-1] + 1])
        yield from self.rows.slice(first, end - first).to_batches()


def _slice_of(rows: pa.Table) -> Slice:
    scns, counts = np.unique(rows[c.COMMIT_SCN].to_numpy(), return_counts=True)
    sizes = np.full(len(scns), 1_000, np.int64)
    return Slice(START, Scn(int(scns[-1])), scns, counts, sizes, sizes)
