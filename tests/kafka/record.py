"""Record what Debezium's connector sends for a story of SQL: `python -m tests.kafka.record` writes tests/data/debezium.

With names of connectors only their files are written anew, `rows` among the names; transaction ids in them may then
differ from those in the others.

Several connectors read the same database at the same time, each with settings of its own, so that their files tell of
the same changes. Beside them `postgres_3.6.rows.jsonl` says what the database itself holds: first a line for each
table, `{"table", "identity", "key", "columns"}`, then a line for each change in the order in which it was made,
`{"transaction", "xid", "op", "table", "before", "after"}`. Its images are whole and hold canonical text; a statement of
many rows gives its changes in the order of their keys. `op` is `snapshot` for rows that were there before.

A record is a line `{"topic", "partition", "offset", "key", "value", "headers"}`. Where it is Avro, `key` and `value`
are base64 in a string, and `postgres_3.6.avro.schemas.json` has the registry's schemas by their ids.
"""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psycopg
from psycopg import sql

from penstock.change import TableName
from penstock.dialects.postgres.casts import text_sql
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.connection import connect
from penstock.schema import TableSchema
from tests.installed import InstalledPostgres
from tests.kafka import jars
from tests.kafka.broker import KafkaBroker, Record
from tests.kafka.connect import WITH_SCHEMAS, ConnectWorker, DebeziumEngine, avro
from tests.kafka.registry import SchemaRegistry

FOLDER = Path(__file__).parents[1] / "data" / "debezium"
AVRO, ROWS = "avro", "rows"

Row = Mapping[str, str | None]

_SANE = "public.numbers,public.texts,public.bytes,public.times,public.arrays,public.toasted,public.filled"
CONNECTORS: Mapping[str, Mapping[str, str]] = {
    "plain": {"heartbeat.interval.ms": "1000"},
    "schemas": WITH_SCHEMAS,
    "connect": {
        **WITH_SCHEMAS,
        "table.include.list": _SANE + ",public.extremes",
        "time.precision.mode": "connect",
        "decimal.handling.mode": "double",
        "binary.handling.mode": "base64",
        "hstore.handling.mode": "map",
        "value.converter.replace.null.with.default": "false",
        "column.propagate.source.type": ".*",
    },
    "iso": {
        **WITH_SCHEMAS,
        "table.include.list": _SANE + ",public.extremes",
        "time.precision.mode": "isostring",
        "decimal.handling.mode": "string",
        "interval.handling.mode": "string",
        "binary.handling.mode": "hex",
        "schema.name.adjustment.mode": "avro",
    },
    "nano": {
        **WITH_SCHEMAS,
        "table.include.list": _SANE,
        "time.precision.mode": "nanoseconds",
        "value.converter.decimal.format": "NUMERIC",
        "binary.handling.mode": "base64-url-safe",
        "unavailable.value.placeholder": "not-there",
        "include.unknown.datatypes": "true",
    },
    "micro": {
        **WITH_SCHEMAS,
        "table.include.list": "public.times,public.extremes,public.shapes",
        "time.precision.mode": "microseconds",
        "interval.handling.mode": "string",
        "include.unknown.datatypes": "true",
    },
    "avro": {"publication.name": "plain", "schema.name.adjustment.mode": "avro", "field.name.adjustment.mode": "avro"},
}
"""The connectors by name, which is also the prefix of their topics and part of their file's name."""


@dataclass
class Story:
    """The statements of story.sql."""

    tables: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    transactions: list[list[str]] = field(default_factory=list)

    @classmethod
    def read(cls) -> Story:
        story = cls()
        into: list[str] = []
        for part in re.split(r"^--: ", (FOLDER / "story.sql").read_text(), flags=re.MULTILINE)[1:]:
            title, _, text = part.partition("\n")
            statements = [each.strip() for each in re.split(r";\n", text) if each.strip()]
            if title in ("tables", "rows"):
                into = story.tables if title == "tables" else story.rows
                into += statements
            else:
                story.transactions.append(statements)
        return story


class Witness:
    """Sees the rows of all tables before and after each statement, and writes down what changed."""

    def __init__(self, url: str, out: TextIO) -> None:
        self._connection = connect(url, "record")
        self._out = out
        self._tables: dict[TableName, TableSchema] = {}

    def tables(self) -> dict[TableName, TableSchema]:
        if self._tables:
            return self._tables
        names = self._connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('public', 'Odd schema')"
            " ORDER BY schemaname, tablename"
        ).fetchall()
        self._tables = read_tables(self._connection, [TableName(*name) for name in names])
        return self._tables

    def describe(self) -> None:
        for name, schema in self.tables().items():
            identity = self._connection.execute(
                "SELECT relreplident::text FROM pg_class WHERE oid = %s::regclass", [_quoted(name)]
            ).fetchone()
            columns = [{"name": x.name, "type": x.type, "nullable": x.is_nullable} for x in schema.columns]
            key = list(schema.primary_key.columns) if schema.primary_key else None
            self._write(table=str(name), identity=identity and identity[0], key=key, columns=columns)

    def transact(self, number: int, statements: Sequence[str]) -> int:
        """Run statements in one transaction; returns its id."""
        self._connection.execute("BEGIN")
        row = self._connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        held: list[dict[str, Any]] = []
        mark = 0
        for statement in statements:
            if statement.startswith("SAVEPOINT"):
                mark = len(held)
            seen = self._rows()
            self._connection.execute(statement.encode())
            if statement.startswith("ALTER"):
                self._tables = {}
            if statement.startswith("ROLLBACK"):
                del held[mark:]
            elif statement.startswith("TRUNCATE"):
                names = re.findall(r"public\.\w+", statement)
                held += [{"op": "truncate", "table": name, "before": None, "after": None} for name in names]
            elif statement.startswith(("INSERT", "UPDATE", "DELETE")):
                held += _differences(statement.split()[0], seen, self._rows())
        self._connection.execute("COMMIT")
        for change in held:
            self._write(transaction=number, xid=row[0], **change)
        return int(row[0])

    def snapshot(self) -> None:
        for name, rows in self._rows().items():
            for row in rows:
                self._write(transaction=None, xid=None, op="snapshot", table=str(name), before=None, after=row)

    def _rows(self) -> dict[TableName, list[Row]]:
        found: dict[TableName, list[Row]] = {}
        for name, schema in self.tables().items():
            if name.name == "parted":
                continue
            texts = [
                sql.SQL("{} AS {}").format(sql.SQL(text_sql(x, f"r.{_ident(x.name)}")), sql.Identifier(x.name))
                for x in schema.columns
            ]
            order = sql.SQL(", ").join(sql.SQL(str(n + 1)) for n in range(len(texts)))
            key = [x.name for x in schema.columns].index("id") + 1 if "id" in [x.name for x in schema.columns] else None
            first = sql.SQL("r.id, ") if key else sql.SQL("")
            query = sql.SQL("SELECT {} FROM {} AS r ORDER BY {}{}").format(
                sql.SQL(", ").join(texts), sql.SQL(_quoted(name)), first, order
            )
            cursor = self._connection.execute(query)
            names = [x.name for x in schema.columns]
            found[name] = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
        return found

    def _write(self, **line: Any) -> None:
        self._out.write(json.dumps(line, ensure_ascii=False) + "\n")


def main(names: Sequence[str]) -> None:
    """Write the files of these connectors anew; of all, if there are no names."""
    kept = jars.fetch(jars.folder())
    settings = {"fsync": "off", "wal_level": "logical", "max_replication_slots": "20", "max_wal_senders": "20"}
    with (
        InstalledPostgres(settings=settings) as server,
        KafkaBroker(jars.broker_path(kept)) as broker,
        SchemaRegistry() as registry,
        ConnectWorker(broker, jars.connect_path(kept)) as worker,
    ):
        out = io.StringIO()
        engines = record(server.url(), broker, worker, registry, out)
        for engine in engines:
            if not names or engine.name in names:
                topics = [*engine.topics(), f"__debezium-heartbeat.{engine.name}"]
                write(broker.read(*topics), _file(engine.name), is_json=engine.name != AVRO)
        if not names or ROWS in names:
            _file(ROWS).write_text(out.getvalue())
        if not names or AVRO in names:
            ids = sorted({each for versions in registry.subjects().values() for each in versions})
            text = json.dumps({each: registry.schema(each) for each in ids}, indent=1, ensure_ascii=False)
            (FOLDER / "postgres_3.6.avro.schemas.json").write_text(text + "\n")


def record(
    url: str, broker: KafkaBroker, worker: ConnectWorker, registry: SchemaRegistry, out: TextIO
) -> list[DebeziumEngine]:
    """Run the story with all connectors; returns them when each has sent the last of it."""
    story = Story.read()
    with psycopg.connect(url) as connection:
        for statement in [*story.tables, *story.rows]:
            connection.execute(statement.encode())
    witness = Witness(url, out)
    witness.describe()
    witness.snapshot()
    engines = []
    for name, options in CONNECTORS.items():
        formats = avro(registry.url) if name == AVRO else {}
        engine = DebeziumEngine(worker, broker, url, name, **options, **formats)
        engine.start()
        engine.wait_for_streaming()
        engines.append(engine)
    last = 0
    for number, statements in enumerate(story.transactions, start=1):
        last = witness.transact(number, statements)
    boundaries = [0]
    for engine in engines:
        if engine.name == AVRO:
            # No END can be read here, so it is known by its place: all connectors see the same transactions.
            broker.read(engine.transactions, count=max(boundaries))
        else:
            boundaries.append(len(engine.wait_for(last)))
    return engines


def write(records: Sequence[Record], file: Path, *, is_json: bool) -> None:
    """Write records as lines of JSON; what is JSON in them stands there byte for byte."""
    text = _text if is_json else _base64
    heartbeats = 0
    with file.open("w") as out:
        for each in _in_order(records):
            if each.topic.startswith("__debezium-heartbeat"):
                heartbeats += 1
                if heartbeats > 2:
                    continue
            headers = [[name, None if text is None else text.decode()] for name, text in each.headers]
            parts = {"topic": each.topic, "partition": each.partition, "offset": each.offset}
            head = json.dumps(parts, ensure_ascii=False)[:-1]
            tail = json.dumps(headers, ensure_ascii=False)
            out.write(f'{head}, "key": {text(each.key)}, "value": {text(each.value)}, "headers": {tail}}}\n')


def _in_order(records: Sequence[Record]) -> Iterator[Record]:
    yield from sorted(records, key=lambda each: (each.topic, each.partition, each.offset))


def _text(content: bytes | None) -> str:
    return "null" if content is None else content.decode()


def _base64(content: bytes | None) -> str:
    return "null" if content is None else json.dumps(base64.b64encode(content).decode())


def _differences(verb: str, seen: dict[TableName, list[Row]], then: dict[TableName, list[Row]]) -> list[dict[str, Any]]:
    """Say what one statement changed; an update's rows are paired in the order of their keys."""
    changes: list[dict[str, Any]] = []
    gone: list[tuple[TableName, Row]] = []
    come: list[tuple[TableName, Row]] = []
    for name, rows in then.items():
        before, after = list(seen.get(name, [])), list(rows)
        for row in list(before):
            if row in after:
                before.remove(row)
                after.remove(row)
        gone += [(name, row) for row in before]
        come += [(name, row) for row in after]
    if verb == "UPDATE" and [name for name, _ in gone] == [name for name, _ in come]:
        return [
            {"op": "update", "table": str(name), "before": old, "after": new}
            for (name, old), (_, new) in zip(gone, come, strict=True)
        ]
    changes += [{"op": "delete", "table": str(name), "before": row, "after": None} for name, row in gone]
    changes += [{"op": "insert", "table": str(name), "before": None, "after": row} for name, row in come]
    return changes


def _file(name: str) -> Path:
    middle = "" if name == "plain" else f".{name}"
    return FOLDER / f"postgres_3.6{middle}.jsonl"


def _ident(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(name: TableName) -> str:
    return f"{_ident(name.schema)}.{_ident(name.name)}"


if __name__ == "__main__":
    main(sys.argv[1:])
