"""Every source that a pipeline may have, each in a place where a test can commit transactions: `SOURCES`.

To have another source tested, add it there. A stand commits what a test says, however transactions come into
being at that source, and hands out the source as `wiring` does.
"""

from __future__ import annotations

import csv
import io
import json
import secrets
import struct
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

from penstock.change import TABLE_VERSION, Change, Op, TableName
from penstock.config.rules import RulesConfig
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.source.connector import PostgresSourceConnector
from penstock.formats.archive_log import CopiedPart
from penstock.formats.change_file import Encoding
from penstock.formats.dbwatcher.message import ColumnMetadata, Command, Head, Message
from penstock.formats.dbwatcher.transactions import KeyedTransaction, TransactionWriter, WriterSettings
from penstock.formats.dbwatcher.writer import write_message
from penstock.formats.debezium.decode import BeforeImage, DecodeSettings
from penstock.formats.debezium.envelope import Topics
from penstock.formats.xds.event import AttributeStep, Operation, Value, XdsAttribute, XdsEvent, XdsEventKind
from penstock.formats.xds.table_key import Association
from penstock.formats.xds.writer import write_document
from penstock.logical import STRING, integer
from penstock.pipeline.connectors import SourceConnector
from penstock.pipeline.transformed import TransformedDatabase, TransformedRecording
from penstock.position import Scn
from penstock.rules.ruleset import RuleSet
from penstock.schema import Column, TableSchema, Unique
from penstock.sinks.archive.files import ArchiveWriter, FileWriter, make_archive
from penstock.sources.change_files.connector import ChangeFilesConnector
from penstock.sources.db2_log.source import open_db2_log
from penstock.sources.dbwatcher.folder import FolderMessages
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.source import MessageConnector, Messages
from penstock.sources.dbwatcher.topic import TopicMessages
from penstock.sources.debezium.connector import DebeziumConnector
from penstock.sources.debezium.files import FileLog
from penstock.sources.debezium.log import LogLayout
from penstock.sources.debezium.tables import Tables
from penstock.sources.xds.source import XdsConnector
from penstock.storage import LocalStorage
from penstock.user_code import load
from penstock.values import encode_image
from tests.archives import BOOK, ITEM, NOON, definition, row, stream
from tests.conftest import lab_between
from tests.hand_made import Lcr, delete
from tests.kafka.broker import KafkaBroker, Record
from tests.sources.db2.encoder import Log, Varying, image

EXAMPLES = Path(__file__).parents[2] / "examples"

GAPS = (2, 1, 3)
"""How far apart the positions of transactions are, where a stand may choose them."""


class Stand(Protocol):
    """A source with two tables, `public.item` and `public.book`, each with a key `id` and a text `name`."""

    def commit(self, *transactions: Sequence[Lcr]) -> None:
        """Commit transactions, one after the other."""

    def tells(self, story: Sequence[Sequence[Lcr]]) -> Sequence[Sequence[Lcr]]:
        """Transactions from the first one on, as a reader is to find them."""
        return story

    def side(self) -> SourceConnector:
        """The source, as a process sees it that has just begun."""


@dataclass(frozen=True)
class Place:
    """What a stand may be made of: two servers, a folder of its own, a broker that starts when asked for."""

    source_server: EmbeddedPostgres
    target_server: EmbeddedPostgres
    folder: Path
    broker: Callable[[], KafkaBroker]


class Queue(Stand):
    """A database with triggers."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        lab.setup("CREATE TABLE item (id int PRIMARY KEY, name text); CREATE TABLE book (LIKE item INCLUDING ALL)")

    def commit(self, *transactions: Sequence[Lcr]) -> None:
        for transaction in transactions:
            with self.lab.source.transaction():
                for change in transaction:
                    self.lab.source.execute(*_sql(change))

    def side(self) -> SourceConnector:
        return PostgresSourceConnector(self.lab.source_url, self.lab.name)


def _sql(change: Lcr) -> tuple[str, Mapping[str, Any]]:
    old, new = change.before or {}, change.after or {}
    match change.op:
        case "insert":
            return f"INSERT INTO {change.table} VALUES (%(id)s, %(name)s)", new
        case "update":
            assigned = ", ".join(f"{name} = %(new_{name})s" for name in new)
            values = {f"new_{name}": value for name, value in new.items()}
            return f"UPDATE {change.table} SET {assigned} WHERE id = %(id)s", {**old, **values}
        case "delete":
            return f"DELETE FROM {change.table} WHERE id = %(id)s", old
    return f"TRUNCATE {change.table}", {}


class Files(Stand):
    """An archive of change files: each call of `commit` adds a record."""

    def __init__(self, folder: Path, encoding: Encoding) -> None:
        self.storage = LocalStorage(folder)
        self._gaps, self._end = cycle(GAPS), 0
        make_archive(self.storage, "shop", encoding)
        self._writer = ArchiveWriter(self.storage)
        self._files = FileWriter(self.storage, encoding, self._writer.acquire().epoch, 2_000)
        tables = [self._writer.describe(n, name, 1, definition(name), name) for n, name in enumerate((ITEM, BOOK), 1)]
        drawn = secrets.token_hex(4)
        copies = [CopiedPart(name, drawn, Scn(0), (), is_complete=True, id=n) for n, name in enumerate((ITEM, BOOK), 1)]
        self._writer.commit(Scn(0), tables=tables)
        self._writer.commit(Scn(0), copies=copies)

    def commit(self, *transactions: Sequence[Lcr]) -> None:
        rows = []
        for transaction in transactions:
            self._end += next(self._gaps)
            for seq, change in enumerate(transaction):
                images = {"before": _texts(change.before), "after": _texts(change.after)}
                one = row(self._end, seq, of=len(transaction), table=TableName("public", change.table), op=change.op)
                key = _texts(change.before or change.after)
                one |= {"key": None if key is None else encode_image({"id": key["id"]}), TABLE_VERSION: 1}
                rows.append(one | {name: None if i is None else encode_image(i) for name, i in images.items()})
        self._writer.commit(Scn(self._end), self._files.write_changes([stream(rows)]))

    def side(self) -> SourceConnector:
        return ChangeFilesConnector(self.storage)


class Csv(Stand):
    """The example of a source of one's own: each call of `commit` adds a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._gaps, self._end = cycle(GAPS), 0
        self._open = load("csv_changes:open_csv", EXAMPLES / "csv_source")
        columns = {"id": "integer", "name": "text"}
        tables = [{"schema": "public", "name": name, "columns": columns, "key": ["id"]} for name in ("item", "book")]
        folder.mkdir()
        (folder / "tables.json").write_text(json.dumps({"id": secrets.token_hex(4), "tables": tables}))

    def commit(self, *transactions: Sequence[Lcr]) -> None:
        written = io.StringIO(newline="")
        to = csv.writer(written)
        to.writerow(["position", "committed_at", "op", "table", "before", "after"])
        for transaction in transactions:
            self._end += next(self._gaps)
            for change in transaction:
                images = [_texts(image) for image in (change.before, change.after)]
                texts = ["" if image is None else encode_image(image) for image in images]
                to.writerow([self._end, NOON.isoformat(), change.op, f"public.{change.table}", *texts])
        unnamed = self.folder / ".written"
        unnamed.write_text(written.getvalue())
        unnamed.rename(self.folder / f"{self._end}.csv")

    def side(self) -> SourceConnector:
        made: SourceConnector = self._open(LocalStorage(self.folder))
        return made


class Events(Stand):
    """A connector's events in files, with a transaction topic: each call of `commit` adds a file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._transactions = self._lines = self._files = 0
        # A table is known from its first event on: here, one of a transaction that never ends.
        block = {"id": "0", "total_order": 1, "data_collection_order": 1}
        self.write([event_record(table, "c", None, {"id": 0, "name": None}, block=block) for table in ("item", "book")])

    def commit(self, *transactions: Sequence[Lcr]) -> None:
        records: list[Mapping[str, Any]] = []
        for transaction in transactions:
            self._transactions += 1
            txn = str(self._transactions)
            for order, change in enumerate(transaction, 1):
                block = {"id": txn, "total_order": order, "data_collection_order": order}
                new = None if change.after is None else {**(change.before or {}), **change.after}
                records.append(event_record(change.table, _OPS[change.op], change.before, new, block=block))
            records.append(end_record(txn, [f"public.{change.table}" for change in transaction]))
        self.write(records)

    def side(self) -> SourceConnector:
        topics = Topics(transaction=("shop.transaction",))
        tables = Tables(DecodeSettings(before_image=BeforeImage.FULL, topics=topics), "shop", skips=False)
        return DebeziumConnector(FileLog(LocalStorage(self.folder)), LogLayout("shop.transaction"), tables, "shop")

    def write(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add a file of records."""
        self._files += 1
        unnamed = self.folder / ".written"
        unnamed.write_text("".join(json.dumps(record) + "\n" for record in records))
        unnamed.rename(self.folder / f"{self._files:06}.jsonl")


_OPS = {"insert": "c", "update": "u", "delete": "d", "truncate": "t"}


def end_record(txn: str, tables: Sequence[str]) -> Mapping[str, Any]:
    """The END of a transaction, with the table of each of its events."""
    collections = [{"data_collection": table, "event_count": count} for table, count in Counter(tables).items()]
    end = {"status": "END", "id": txn, "event_count": len(tables), "data_collections": collections}
    value = {**end, "ts_ms": int(NOON.timestamp() * 1000)}
    return {"topic": "shop.transaction", "key": {"id": txn}, "value": value}


def event_record(
    table: str,
    op: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    *,
    block: Mapping[str, Any] | None = None,
    snapshot: str = "false",
) -> Mapping[str, Any]:
    """An event of a table of id and name, as a line of a file of events has it."""
    fields = [
        {"type": "int32", "optional": False, "field": "id"},
        {"type": "string", "optional": True, "field": "name"},
    ]
    rows = [{"type": "struct", "fields": fields, "optional": True, "field": name} for name in ("before", "after")]
    source = {"connector": "postgresql", "name": "shop", "db": "shop", "schema": "public", "table": table}
    source |= {"snapshot": snapshot, "ts_ms": int(NOON.timestamp() * 1000), "lsn": 1, "txId": block and block["id"]}
    payload = {"before": before, "after": after, "source": source, "transaction": block, "op": op}
    key = {"id": (before or after or {})["id"]} if op != "t" else None
    key_schema = {"type": "struct", "fields": fields[:1], "optional": False}
    return {
        "topic": f"shop.public.{table}",
        "key": None if key is None else {"schema": key_schema, "payload": key},
        "value": {"schema": {"type": "struct", "fields": rows, "optional": False}, "payload": payload},
    }


class Buffers(Stand):
    """A folder of buffers of Db2's log: each call of `commit` adds one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.log = folder, Log()
        self._rid = self._written = self._txns = self._files = 0
        columns = [{"name": "id", "type": "INTEGER", "key_seq": 1}, {"name": "name", "type": "VARCHAR", "length": 400}]
        tables = [
            {"schema": "public", "table": name, "ids": [self._ids(name)], "columns": columns}
            for name in ("item", "book")
        ]
        (folder / "catalog.json").write_text(json.dumps({"id": secrets.token_hex(4), "tables": tables}))

    def commit(self, *transactions: Sequence[Lcr]) -> None:
        for transaction in transactions:
            self._txns += 1
            for change in transaction:
                self._add(self._txns, change)
            self.log.commit(self._txns, int(NOON.timestamp()))
        self._files += 1
        unnamed = self.folder / ".written"
        unnamed.write_bytes(b"".join(self.log.records[self._written :]))
        unnamed.rename(self.folder / f"{self._files:09}.db2log")
        self._written = len(self.log.records)

    def _add(self, tid: int, change: Lcr) -> None:
        log = self.log
        log.table = self._ids(change.table)
        old, new = change.before or {}, {**(change.before or {}), **(change.after or {})}
        self._rid += 1
        match change.op:
            case "insert":
                log.insert(tid, self._rid, self._image(new))
            case "update":
                log.update(tid, self._rid, self._image(old), self._image(new))
            case "delete":
                log.delete(tid, self._rid, self._image(old))
            case "truncate":
                log.truncate(tid)

    def side(self) -> SourceConnector:
        return open_db2_log(LocalStorage(self.folder))

    @staticmethod
    def _ids(table: str) -> tuple[int, int]:
        return 3, {"item": 22, "book": 23}[table]

    @staticmethod
    def _image(values: Mapping[str, Any]) -> bytes:
        name = values["name"]
        return image([struct.pack("<i", values["id"]), Varying(None if name is None else name.encode())])


class Watched(Stand):
    """DbWatcher messages, one for a transaction; CREATE messages precede them."""

    def __init__(self) -> None:
        self._transactions = self._key = 0
        columns = (Column.of("id", integer(32), is_nullable=False), Column.of("name", STRING))
        tables = {name: TableSchema(name, columns) for name in (ITEM, BOOK)}
        self._writer = TransactionWriter(lambda name, _: tables.get(name), WriterSettings(sends_truncate=True))
        for name in (ITEM, BOOK):
            self.write(create_message(name, {"id": {"type": "int4", "pk": "true"}, "name": {"type": "text"}}))

    def tells(self, story: Sequence[Sequence[Lcr]]) -> Sequence[Sequence[Lcr]]:
        """An insert does not name columns that are NULL."""
        return [
            [
                replace(change, after={k: v for k, v in (change.after or {}).items() if v is not None})
                if change.op == "insert"
                else change
                for change in transaction
            ]
            for transaction in story
        ]

    def commit(self, *transactions: Sequence[Lcr]) -> None:
        for transaction in transactions:
            self._transactions += 1
            changes = [
                Change(n, Op(x.op), TableName("public", x.table), 1, _texts(x.before), _texts(x.after))
                for n, x in enumerate(transaction)
            ]
            keys = range(self._key + 1, self._key + 1 + len(changes))
            self._key += len(changes)
            for message in self._writer.messages([KeyedTransaction(str(self._transactions), changes, keys)]):
                self.write(message)

    @abstractmethod
    def write(self, message: Message) -> None:
        """Put a message behind the others."""


class WatchedFolder(Watched):
    """The same in a folder, a file for each message."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self._files = folder, 0
        super().__init__()

    def write(self, message: Message) -> None:
        self._files += 1
        unnamed = self.folder / ".written"
        unnamed.write_bytes(write_message(message))
        unnamed.rename(self.folder / f"{self._files:06}.xml")

    def side(self) -> SourceConnector:
        return MessageConnector(Messages(FolderMessages(LocalStorage(self.folder)), ["public.*"], Reading()))


class WatchedTopic(Watched):
    """The same in a topic of Kafka, with the properties as headers."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker, self._topic = broker, broker.topic(f"watched_{secrets.token_hex(4)}", 1)
        super().__init__()

    def write(self, message: Message) -> None:
        headers = tuple((name, value.encode()) for name, value in message.properties.items())
        self._broker.produce([Record(self._topic, 0, 0, None, write_message(message), headers)])

    def side(self) -> SourceConnector:
        log = TopicMessages({"bootstrap.servers": self._broker.address}, self._topic)
        return MessageConnector(Messages(log, ["public.*"], Reading()))


def create_message(
    table: TableName, columns: Mapping[str, Mapping[str, str]], *, key: int = 0, txn: str = "0"
) -> Message:
    """The CREATE of a table, with what its database says of each column."""
    said = {"action": "CREATE", "schema": table.schema, "tableName": table.name, "_createCounter": "0"}
    said |= {"replKey": str(key), "transaction": f"{txn}.{table.name}"}
    metadata = [ColumnMetadata(name, {**told, "pos": str(n)}) for n, (name, told) in enumerate(columns.items(), 1)]
    return Message(Head(Command.CREATE, table.name, said, metadata))


class Documents:
    """A folder of XDS documents, one for a transaction, above tables that are described elsewhere."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._gaps, self._end = cycle(GAPS), 0
        self._keys = {"item": set[int](), "book": set[int]()}

    def tells(self, story: Sequence[Sequence[Lcr]]) -> Sequence[Sequence[Lcr]]:
        """A delete names no more than the key, and a truncate is a delete of each row."""
        keys = {table: set[int]() for table in self._keys}
        return [[told for change in transaction for told in _by_key(change, keys)] for transaction in story]

    def commit(self, *transactions: Sequence[Lcr]) -> None:
        for transaction in transactions:
            self._end += next(self._gaps)
            events = [_event(told) for change in transaction for told in _by_key(change, self._keys)]
            unnamed = self.folder / ".written"
            unnamed.write_bytes(write_document(events))
            unnamed.rename(self.folder / f"{self._end}.xml")

    def side(self) -> SourceConnector:
        columns = (Column.of("id", integer(32), is_nullable=False), Column.of("name", STRING))
        tables = {
            name: TableSchema(name, columns, Unique(f"{name.name}_pkey", ("id",), ("id",))) for name in (ITEM, BOOK)
        }
        return XdsConnector(LocalStorage(self.folder), ["public.*"], lambda _: tables)


def _by_key(change: Lcr, keys: Mapping[str, set[int]]) -> Sequence[Lcr]:
    """What a document says of a change; `keys` are those of the rows that there are, and are brought up to date."""
    there = keys[change.table]
    match change.op:
        case "truncate":
            gone = [delete(change.table, id=key) for key in sorted(there)]
            there.clear()
            return gone
        case "delete":
            assert change.before is not None
            there.discard(change.before["id"])
            return [delete(change.table, id=change.before["id"])]
        case "insert":
            assert change.after is not None
            there.add(change.after["id"])
    return [change]


def _event(change: Lcr) -> XdsEvent:
    old, new = change.before or {}, change.after or {}
    association = str(Association((("id", str({**new, **old}["id"])),), change.table, "public"))
    kind = {"insert": XdsEventKind.ADD, "update": XdsEventKind.MODIFY, "delete": XdsEventKind.DELETE}[change.op]
    told = []
    for name in [name for name in new if name != "id"]:
        values = [(AttributeStep.REMOVE_VALUE, old.get(name)), (AttributeStep.ADD_VALUE, new[name])]
        steps = tuple(Operation(step, (Value("string", text),)) for step, text in values if text is not None)
        told += [XdsAttribute(name, steps)] if steps else []
    return XdsEvent(kind, change.table, association, tuple(told))


class Ruled:
    """Another stand, seen through rules that concern none of its tables."""

    def __init__(self, inner: Stand, kind: type[TransformedDatabase] | type[TransformedRecording]) -> None:
        self._inner, self._kind = inner, kind
        self.commit, self.tells = inner.commit, inner.tells

    def side(self) -> SourceConnector:
        rules = RulesConfig.model_validate({"exclude": ["other.*"]})
        return self._kind(self._inner.side(), RuleSet.of(rules, ["public.*"], Path()))  # type: ignore[arg-type]


def _texts(values: Mapping[str, Any] | None) -> dict[str, str | None] | None:
    return None if values is None else {k: None if value is None else str(value) for k, value in values.items()}


Made = Callable[[Place], AbstractContextManager[Stand]]


@contextmanager
def trigger_queue(place: Place) -> Iterator[Stand]:
    with lab_between(place.source_server, place.target_server) as lab:
        yield Queue(lab)


@contextmanager
def ruled_trigger_queue(place: Place) -> Iterator[Stand]:
    with trigger_queue(place) as inner:
        yield Ruled(inner, TransformedDatabase)


@contextmanager
def ruled_change_files(place: Place) -> Iterator[Stand]:
    yield Ruled(Files(place.folder, Encoding.CHANGES), TransformedRecording)


def in_folder(stand: Callable[[Path], Stand]) -> Made:
    """A stand that needs nothing but a folder of its own, which is not there yet."""

    @contextmanager
    def made(place: Place) -> Iterator[Stand]:
        yield stand(place.folder)

    return made


@contextmanager
def watched_topic(place: Place) -> Iterator[Stand]:
    yield WatchedTopic(place.broker())


SOURCES: Mapping[str, Made] = {
    "trigger_queue postgres": trigger_queue,
    "trigger_queue postgres, ruled": ruled_trigger_queue,
    "change_files changes": in_folder(partial(Files, encoding=Encoding.CHANGES)),
    "change_files parquet": in_folder(partial(Files, encoding=Encoding.PARQUET)),
    "change_files changes, ruled": ruled_change_files,
    "debezium files": in_folder(Events),
    "db2_log buffers": in_folder(Buffers),
    "xds documents": in_folder(Documents),
    "dbwatcher folder": in_folder(WatchedFolder),
    "dbwatcher topic": watched_topic,
    "own csv_source": in_folder(Csv),
}
"""By name: what `capture.source` calls it, then of what kind it is."""
