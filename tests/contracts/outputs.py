"""Every output that changes may go to, each with the ledger of its runs: `OUTPUTS`.

To have another one tested, add it there. What an output holds is told as the rows of one table, whatever form it has.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import fastavro
import numpy as np
import pyarrow as pa

from penstock import change as c
from penstock.apply.ledger import LaneClaim
from penstock.apply.process import Ledger
from penstock.apply.task import apply_lane, in_commit_order
from penstock.change import TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.target.ledger import PostgresLedger
from penstock.formats.change_file import Encoding
from penstock.formats.dbwatcher.files import split
from penstock.formats.dbwatcher.reader import read_message
from penstock.formats.debezium.avro_writer import AvroPacking
from penstock.formats.debezium.writer import EventSettings, JsonPacking, Packing
from penstock.position import Anchor, Scn
from penstock.schema import Column, Dictionary, TableSchema
from penstock.schema_registry import Registry
from penstock.sinks.archive.files import FileWriter, make_archive
from penstock.sinks.archive.ledger import ArchiveLedger
from penstock.sinks.dbwatcher.encoder import MessageFormat, MessageSettings
from penstock.sinks.dbwatcher.folder import MessageFolder
from penstock.sinks.dbwatcher.sink import MessageFileSink, MessageTopicSink
from penstock.sinks.events.encoder import EventFormat
from penstock.sinks.events.encoding import RecordFormat
from penstock.sinks.events.files import Folder
from penstock.sinks.events.kafka import Cluster
from penstock.sinks.events.ledger import EventLedger
from penstock.sinks.events.publisher import EventDestination
from penstock.sinks.events.sink import EventFileSink, KafkaSink
from penstock.sinks.events.task import EventTask
from penstock.storage import LocalStorage
from penstock.stream import Slice
from penstock.values import decode_image
from tests.archives import read
from tests.conftest import create_database, drop_database, numbers
from tests.hand_made import Target
from tests.kafka.broker import KafkaBroker
from tests.kafka.registry import SchemaRegistry

TABLE = TableName("public", "entry")

Row = tuple[str, str | None]


class Output(Protocol):
    """Where changes of the table `entry` go, which has two columns, `at` and `body`, and no key."""

    def ledger(self) -> Ledger:
        """The ledger, as a process has it that has just begun."""

    def write(self, ledger: Any, epoch: int, batch: pa.RecordBatch) -> None:
        """Do what the tasks of a run do with a batch; raises what they fail with."""

    def lose(self, ledger: Any) -> None:
        """Let go of what keeps a second run out, as if the machine of the first one were gone."""

    def rows(self) -> list[Row]:
        """What anybody sees who looks now, in order."""


@dataclass(frozen=True)
class Place:
    """What an output may be made of."""

    server: EmbeddedPostgres
    folder: Path
    broker: Callable[[], KafkaBroker]


class Applied:
    """A PostgreSQL database."""

    def __init__(self, url: str) -> None:
        self.target = Target(url, "CREATE TABLE entry (at int, body text)", instantiated=0)
        self.target.ledger.close()
        self._attempt = 0

    def ledger(self) -> Ledger:
        return PostgresLedger(self.target.url, "A1")

    def write(self, ledger: Any, epoch: int, batch: pa.RecordBatch) -> None:
        self._attempt += 1
        context = self.target.context()
        claim = LaneClaim("A1", epoch, 0, self._attempt, moves_watermark=False)
        result = apply_lane(in_commit_order([batch], context.catalog.instantiated).to_batches(), claim, context)
        if result.failure is not None:
            raise result.failure

    def lose(self, ledger: Any) -> None:
        self.target.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'penstock A1 ledger%'"
        )

    def rows(self) -> list[Row]:
        return self.target.rows("SELECT at::text, body FROM entry ORDER BY at, body")


class NoLock:
    """The lock at the source, which another process would be kept out by: these tests are about what comes behind."""

    def close(self) -> None:
        """Let go of nothing."""


class Published:
    """An archive of change files."""

    def __init__(self, folder: Path, encoding: Encoding) -> None:
        self.storage, self.encoding = LocalStorage(folder), encoding
        make_archive(self.storage, "DBS1", encoding)

    def ledger(self) -> Ledger:
        return ArchiveLedger("A1", self.storage, NoLock)

    def write(self, ledger: Any, epoch: int, batch: pa.RecordBatch) -> None:
        ledger.take(FileWriter(self.storage, self.encoding, epoch).write_changes([batch]))

    def lose(self, ledger: Any) -> None:
        """Nothing keeps a second run out."""

    def rows(self) -> list[Row]:
        images = (decode_image(text) for text in read(self.storage)[c.AFTER].to_pylist())
        return [(str(image["at"]), image["body"]) for image in images]


class Records:
    """Records of a format, in topics or in files."""

    def __init__(self, log: EventDestination, form: RecordFormat, read: Callable[[], list[Row]]) -> None:
        self.log, self.form = log, form
        self.rows = read

    def ledger(self) -> Ledger:
        return EventLedger(self.log, "shop", NoLock)

    def write(self, ledger: Any, epoch: int, batch: pa.RecordBatch) -> None:
        columns = (Column("at", "integer", "integer"), Column("body", "text", "text"))
        records = self.form.encoder(Dictionary([TableSchema(TABLE, columns)]), {})
        task = EventTask(self.log, epoch, records)
        ledger.took(task.publish(slice_of_batch(ledger.published_state.position, batch), Given(batch), ledger.token))

    def lose(self, ledger: Any) -> None:
        """Nothing keeps a second run out."""


@dataclass(frozen=True)
class Given:
    """A reader of what it was given."""

    batch: pa.RecordBatch
    leaves_out: bool = False

    def open(self) -> None:
        """Nothing is opened."""

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        yield self.batch


def slice_of_batch(after: Scn, batch: pa.RecordBatch) -> Slice:
    """A slice of the transactions of a batch, behind which the source's log was cut."""
    scns, counts = np.unique(batch.column(c.COMMIT_SCN).to_numpy(), return_counts=True)
    end = Scn(int(scns[-1]))
    zeros = np.zeros(len(scns), np.int64)
    return Slice(after, end, scns, counts, zeros, zeros, cut=Anchor(end, f"m{end}"))


Made = Callable[[Place], AbstractContextManager[Output]]


@contextmanager
def postgres(place: Place) -> Iterator[Output]:
    name = f"output{next(numbers)}"
    create_database(place.server, name)
    made = Applied(place.server.url(name))
    yield made
    made.target.close()
    drop_database(place.server, name)


def files(encoding: Encoding) -> Made:
    @contextmanager
    def made(place: Place) -> Iterator[Output]:
        yield Published(place.folder, encoding)

    return made


@contextmanager
def kafka(place: Place) -> Iterator[Output]:
    yield in_topics(place.broker(), JsonPacking(with_schemas=False), json.loads)


@contextmanager
def kafka_avro(place: Place) -> Iterator[Output]:
    with SchemaRegistry() as registry:

        def decode(value: bytes) -> Any:
            schema = registry.schema(int.from_bytes(value[1:5], "big"))
            return fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)

        yield in_topics(place.broker(), AvroPacking(Registry(registry.url).register), decode)


def in_topics(broker: KafkaBroker, packing: Packing, decode: Callable[[bytes], Any]) -> Output:
    cluster = Cluster({"bootstrap.servers": broker.address}, f"output{next(numbers)}")
    settings = EventSettings(cluster.pipeline, "db", packing=packing)
    KafkaSink(cluster, settings).make("DBS1", [TABLE])
    topic = settings.topic_of(TABLE)
    return Records(
        cluster, EventFormat(settings), lambda: of_events(decode(record.value or b"") for record in broker.read(topic))
    )


def of_events(events: Iterable[Any]) -> list[Row]:
    return [(str(event["after"]["at"]), event["after"]["body"]) for event in events]


def of_messages(records: Iterable[tuple[bytes, Mapping[str, str]]]) -> list[Row]:
    """The rows of messages, each of which is one transaction, with the next number and keys that grow."""
    found, last_key = list[Row](), 0
    for number, (body, properties) in enumerate(records, 1):
        message = read_message(body, properties)
        assert (properties["_MESSAGE_SEQ"], properties["_NUM_OF_TRANSACTIONS"]) == (str(number), "1")
        assert {row.attributes["transaction"] for row in message.rows} == {message.head.ident}
        for row in message.rows:
            assert int(row.attributes["replKey"]) > last_key
            last_key = int(row.attributes["replKey"])
            at, body_ = row.columns["at"], row.columns.get("body")
            found.append((str(at), None if body_ is None else str(body_)))
        assert properties["replKey"] == str(last_key)
    return found


@contextmanager
def message_topic(place: Place) -> Iterator[Output]:
    broker = place.broker()
    cluster = Cluster({"bootstrap.servers": broker.address}, f"output{next(numbers)}")
    settings = MessageSettings(f"{cluster.pipeline}.dbwatcher", compress_bytes=500)
    MessageTopicSink(cluster, settings).make("DBS1", [TABLE])

    def read() -> Iterator[tuple[bytes, Mapping[str, str]]]:
        for record in broker.read(settings.topic):
            yield record.value or b"", {name: (value or b"").decode() for name, value in record.headers}

    yield Records(cluster, MessageFormat(settings), lambda: of_messages(read()))


def messages_in(folder: Path) -> Iterator[bytes]:
    """The messages in the files of a folder, those without rows beside a position among them."""
    for file in sorted(folder.glob("*.xml")):
        yield from split(file.read_bytes())


@contextmanager
def message_files(place: Place) -> Iterator[Output]:
    folder = MessageFolder(LocalStorage(place.folder), "shop")
    settings = MessageSettings("shop.dbwatcher")

    def read() -> Iterator[tuple[bytes, Mapping[str, str]]]:
        for body in messages_in(place.folder):
            told = read_message(body).head.attributes
            if told:
                yield body, told

    MessageFileSink(folder, settings, max_age_s=0).make("DBS1", [TABLE])
    yield Records(folder, MessageFormat(settings), lambda: of_messages(read()))


@contextmanager
def event_files(place: Place) -> Iterator[Output]:
    folder = Folder(LocalStorage(place.folder), "shop")

    def read(topic: str) -> Iterator[Any]:
        for file in sorted(place.folder.glob("*.jsonl")):
            lines = map(json.loads, file.read_text().splitlines())
            yield from (line["value"] for line in lines if line["topic"] == topic)

    settings = EventSettings("shop", "db", packing=JsonPacking(with_schemas=False))
    EventFileSink(folder, settings, max_age_s=0).make("DBS1", [TABLE])
    yield Records(folder, EventFormat(settings), lambda: of_events(read(settings.topic_of(TABLE))))


OUTPUTS: Mapping[str, Made] = {
    "apply postgres": postgres,
    "publish files changes": files(Encoding.CHANGES),
    "publish files parquet": files(Encoding.PARQUET),
    "publish files debezium-json": event_files,
    "publish kafka debezium-json": kafka,
    "publish kafka debezium-avro": kafka_avro,
    "publish files dbwatcher": message_files,
    "publish kafka dbwatcher": message_topic,
}
