"""PostgreSQL -> Penstock -> files of DbWatcher messages, read back and held against the source's own text."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from penstock.cli.status import show
from penstock.formats.dbwatcher.message import Columns, Message, Value
from penstock.formats.dbwatcher.reader import read_message
from penstock.pipeline.publication import Publication
from tests.contracts.outputs import messages_in
from tests.lab import Lab
from tests.stories.test_publish_events import CHANGES, TYPES

PUBLISHING = """
version: 1
name: {name}
connections: {{shop: {{type: postgres, url: "{url}"}}}}
capture: {{source: trigger_queue, connection: shop, tables: ["public.*"]}}
publish: {{to: files, path: messages, format: dbwatcher, max_age_s: 0, dbwatcher: {messages}}}
"""

HOSTILE = [
    "",
    "a<b & c",
    "x]]>y\\z",
    "tab\there\rcr\x01end",
    "  \"q\" 's' äß€😀  ",
    " </sql>\n<?xml version='1.0' encoding='UTF-8' ?>\n <sql>",
    "<![CDATA[ ]] > --> <!-- penstock.lab.position []",
    "\ufffe\uffff",
    "\u0085\u2028|&amp;",
    "a|b",
    "&lt;col name=&quot;x&quot;&gt;",
]


def opened(folder: Path, lab: Lab, **messages: object) -> Publication:
    path = folder / "publish.yaml"
    path.write_text(PUBLISHING.format(name=lab.name, url=lab.source_url, messages=json.dumps(messages)))
    publication = penstock.open(path)
    assert isinstance(publication, Publication)
    return publication


def run(publication: Publication) -> Any:
    return publication.run(threading.Event(), until_caught_up=True)


def messages_of(folder: Path) -> list[Message]:
    """The messages that were published, without those beside a position."""
    found = [read_message(body) for body in messages_in(folder / "messages")]
    return [message for message in found if message.head.attributes or message.rows]


def told(message: Message) -> Sequence[object]:
    """What a message is, its rows' actions included."""
    said = message.head.attributes
    actions = [message.attribute(row, "action") for row in message.rows]
    return [message.command.value, *([said["tableName"]] if "tableName" in said else []), *actions]


class Receiver:
    """Applies messages to rows in memory: an INSERT's columns that are absent are NULL."""

    def __init__(self) -> None:
        self.rows: dict[str, Counter[tuple[tuple[str, Value], ...]]] = {}
        self._columns: dict[str, Sequence[str]] = {}

    def apply(self, messages: Sequence[Message]) -> None:
        for message in messages:
            said = message.head.attributes
            if message.command == "CREATE":
                self._columns[said["tableName"]] = [column.name for column in message.head.metadata]
                self.rows[said["tableName"]] = Counter()
            for row in message.rows:
                table, action = message.attribute(row, "tableName"), message.attribute(row, "action")
                assert table is not None
                if action != "INSERT":
                    self._take(table, row.columns if row.old is None else row.old)
                if action != "DELETE":
                    self.rows[table][self._whole(table, row.columns)] += 1

    def _take(self, table: str, image: Columns) -> None:
        whole = self._whole(table, image)
        assert self.rows[table][whole] > 0
        self.rows[table] -= Counter([whole])

    def _whole(self, table: str, image: Columns) -> tuple[tuple[str, Value], ...]:
        return tuple((name, image.get(name)) for name in self._columns[table])


def own_text(connection: psycopg.Connection[Any], table: str) -> Counter[tuple[tuple[str, Value], ...]]:
    """The rows of a table as PostgreSQL's output functions write them; bytes as they are, booleans in whole words."""
    connection.execute("SET timezone = 'UTC'; SET intervalstyle = 'iso_8601'; SET extra_float_digits = 1")
    columns = connection.execute(
        "SELECT attname, atttypid::regtype::text FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [table],
    ).fetchall()

    def expression(name: str, type_: str) -> str:
        quoted = '"' + name.replace('"', '""') + '"'
        if type_ == "bytea":
            return quoted
        # A cast of character(n) to text takes its blanks away.
        return (
            f"CASE WHEN {quoted} IS NOT NULL THEN format('%s', {quoted}) END"
            if type_ == "character"
            else f"{quoted}::text"
        )

    listed = ", ".join(expression(name, type_) for name, type_ in columns) or "NULL"
    rows = connection.execute(f"SELECT {listed} FROM {table}").fetchall()
    return Counter(tuple((name, value) for (name, _), value in zip(columns, row, strict=True)) for row in rows)


def as_bytes(rows: Counter[tuple[tuple[str, Value], ...]]) -> Counter[tuple[tuple[str, bytes | None], ...]]:
    """The same with texts as their UTF-8: one that was Base64 for what is in it is read as bytes."""
    found = Counter[tuple[tuple[str, bytes | None], ...]]()
    for row, count in rows.items():
        found[tuple((n, value.encode() if isinstance(value, str) else value) for n, value in row)] += count
    return +found


def test_every_type_and_every_text_comes_back_as_the_source_has_it(lab: Lab, tmp_path: Path, spark: object) -> None:
    lab.source.execute(TYPES)
    lab.source.execute('CREATE TABLE "Odd ""T" ("Id" int, "a""b<&" text, span interval)')
    insert = 'INSERT INTO "Odd ""T" VALUES (%s, %s, %s)'
    lab.source.execute(insert, [0, None, "1 mon -3 days 04:05:06.7"])
    publication = opened(tmp_path, lab)
    publication.setup()
    run(publication)
    lab.source.execute(CHANGES)
    with lab.source.transaction():
        for number, text in enumerate(HOSTILE * 2):
            lab.source.execute(insert, [number % 3, text, None])
    lab.source.execute('UPDATE "Odd ""T" SET "a""b<&" = "a""b<&" || %s, span = NULL WHERE "Id" = 1', ["]]>"])
    lab.source.execute('UPDATE "Odd ""T" SET "a""b<&" = NULL WHERE "Id" = 2')
    lab.source.execute('DELETE FROM "Odd ""T" WHERE "Id" = 0')
    progress = run(publication)

    receiver = Receiver()
    receiver.apply(messages_of(tmp_path))

    assert progress.errors == 0
    assert sum(receiver.rows["kinds"].values()) == 4
    assert as_bytes(receiver.rows["kinds"]) == as_bytes(own_text(lab.source, "kinds"))
    assert sum(receiver.rows['Odd "T'].values()) == 14
    assert as_bytes(receiver.rows['Odd "T']) == as_bytes(own_text(lab.source, '"Odd ""T"'))


def test_a_table_is_created_and_filled_and_each_transaction_is_a_message(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(9)); CREATE TABLE none ()")
    lab.source.execute("INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 600) n")
    publication = opened(tmp_path, lab, version="2.1", database="erp")
    assert [step.summary for step in publication.plan().target.steps] == ["a folder of DbWatcher messages"]
    publication.setup()
    assert publication.plan().is_done
    run(publication)
    with lab.source.transaction():
        lab.source.execute("INSERT INTO t VALUES (601, NULL)")
        lab.source.execute("UPDATE t SET v = 'x' WHERE id = 601")
        lab.source.execute("DELETE FROM t WHERE id = 1")
    lab.source.execute("UPDATE t SET v = v WHERE id = 2")
    run(publication)
    run(publication)

    messages = messages_of(tmp_path)
    numbers = [message.head.attributes["_MESSAGE_SEQ"] for message in messages]
    content = [message for message in messages if message.head.attributes.get("tableName") == "t"]
    changes = [message for message in messages if "tableName" not in message.head.attributes]
    files = sorted(file.name for file in (tmp_path / "messages").iterdir())

    assert numbers == [str(number) for number in range(1, len(messages) + 1)]
    assert [(m.command.value, m.head.ident, m.head.attributes["_createCounter"], len(m.rows)) for m in content] == [
        ("CREATE", "t", "0", 0),
        ("REPLICATION", "t", "1", 250),
        ("REPLICATION", "t", "2", 250),
        ("REPLICATION", "t", "3", 100),
    ]
    assert [(one.name, one.attributes["type"], one.attributes["nullable"]) for one in content[0].head.metadata] == [
        ("id", "int4", "0"),
        ("v", "varchar", "1"),
    ]
    assert [told(message) for message in changes] == [
        ["REPLICATION", "INSERT", "UPDATE", "DELETE"],
        ["REPLICATION", "UPDATE"],
    ]
    first, second = changes
    assert [dict(row.columns) for row in first.rows] == [
        {"id": "601"},
        {"id": "601", "v": "x"},
        {"id": "1", "v": "v1"},
    ]
    assert [row.old for row in first.rows] == [None, {"id": "601", "v": None}, None]
    keys = [int(row.attributes.pop("replKey")) for message in changes for row in message.rows]  # type: ignore[attr-defined]
    assert keys == sorted(set(keys))
    assert first.head.attributes["replKey"] == str(keys[2])
    assert {row.attributes["transaction"] for row in first.rows} == {first.head.ident} != {second.head.ident}
    assert dict(first.rows[0].attributes) == {
        "schema": "public",
        "tableName": "t",
        "action": "INSERT",
        "version": "2.1",
        "dbId": "erp",
        "transaction": first.head.ident,
    }
    assert files == [f"{number:020}.xml" for number in range(1, len(files) + 1)]
    status = publication.status()
    assert (status.transactions, status.changes, status.copied, status.to_copy) == (2, 4, 2, 0)


def test_ddl_has_messages_of_its_own_between_the_halves_of_its_transaction(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE gone (id int PRIMARY KEY)")
    lab.source.execute("CREATE TABLE old (id int PRIMARY KEY); INSERT INTO old VALUES (5)")
    publication = opened(tmp_path, lab)
    publication.setup()
    run(publication)
    before = len(messages_of(tmp_path))
    with lab.source.transaction():
        lab.source.execute("INSERT INTO t VALUES (1, 'a')")
        lab.source.execute("ALTER TABLE t ADD city text")
        lab.source.execute("INSERT INTO t VALUES (2, 'b', 'Uster')")
    lab.source.execute("CREATE INDEX ON t (city)")
    lab.source.execute("DROP TABLE gone")
    lab.source.execute("ALTER TABLE old RENAME TO new")
    lab.source.execute("CREATE TABLE made (id int PRIMARY KEY); INSERT INTO made VALUES (7)")
    publication.setup()
    run(publication)
    run(publication)

    messages = messages_of(tmp_path)[before:]

    assert [told(message) for message in messages] == [
        ["CREATE", "made"],
        ["REPLICATION", "made", "INSERT"],
        ["CREATE", "new"],
        ["REPLICATION", "new", "INSERT"],
        ["REPLICATION", "INSERT"],
        ["ALTER", "t"],
        ["REPLICATION", "INSERT"],
        ["DROP", "gone"],
        ["DROP", "old"],
    ]
    halves = messages[4:7]
    assert [message.keeps_transaction_open for message in halves] == [True, True, False]
    assert [message.head.attributes["_NUM_OF_TRANSACTIONS"] for message in halves] == ["0", "0", "1"]
    assert len({message.head.ident for message in halves}) == 1
    assert halves[2].rows[0].columns == {"id": "2", "v": "b", "city": "Uster"}
    columns = {one.name: one.attributes for one in halves[1].head.metadata}
    assert {name: said["was"] for name, said in columns.items()} == {"id": "id", "v": "v", "city": ""}
    assert columns["city"]["type"] == "text"


RECEIVER = """
version: 1
name: receiver
connections: {{copy: {{type: postgres, url: "{url}"}}}}
capture: {{source: dbwatcher, path: {path}, tables: ["public.*"]}}
apply: {{connection: copy, ddl: apply}}
"""


def test_a_receivers_table_follows_what_the_sources_is_altered_by(lab: Lab, tmp_path: Path, spark: object) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text, gone int, n int, p numeric(5,-2))")
    lab.source.execute("INSERT INTO t VALUES (1, 'a', 7, 8, 12300)")
    publication = opened(tmp_path, lab)
    publication.setup()
    run(publication)
    (file := tmp_path / "receiver.yaml").write_text(RECEIVER.format(url=lab.target_url, path=tmp_path / "messages"))
    receiver = penstock.open(file)
    receiver.setup()
    receiver.run(threading.Event(), until_caught_up=True)

    with lab.source.transaction():
        lab.source.execute("INSERT INTO t VALUES (2, 'b', 7, 8, 99900)")
        lab.source.execute("ALTER TABLE t ADD city varchar(40) NOT NULL DEFAULT 'o''k <&> ]]>', DROP gone")
        lab.source.execute("INSERT INTO t VALUES (3, 'c', 8, 100)")
    lab.source.execute("ALTER TABLE t RENAME v TO name")
    lab.source.execute("UPDATE t SET name = 'd', city = 'Uster' WHERE id = 3")
    lab.source.execute("ALTER TABLE t ALTER n TYPE bigint, ADD ip inet, ALTER p TYPE numeric(12,3)")
    lab.source.execute("INSERT INTO t VALUES (4, 'e', 5000000000, 1.234, 'Bern', '10.0.0.1')")
    run(publication)
    receiver.run(threading.Event(), until_caught_up=True)

    columns = "SELECT id, name, n, p, city, host(ip::inet) FROM t ORDER BY id"
    assert lab.target.execute(columns).fetchall() == lab.source.execute(columns).fetchall()
    types = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0"
    types += " AND NOT attisdropped ORDER BY attname"
    found = [one for (one,) in lab.target.execute(types).fetchall()]
    # city, id, ip (text, as CREATE makes it), n, name, p
    assert found == ["character varying(40)", "integer", "text", "bigint", "text", "numeric(12,3)"]
    assert receiver.status().errors == 0

    # What rows have by an expression is not told: a person decides, and nothing becomes another value in silence.
    lab.source.execute("ALTER TABLE t ALTER n TYPE text USING 'n' || n")
    run(publication)
    receiver.run(threading.Event(), until_caught_up=True)
    (entry,) = receiver.errors().entries()
    assert "column 'n' became text by an expression of the statement" in str(entry)


def test_a_table_that_takes_the_name_of_another_one_is_created_after_that_is_dropped(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    publication = opened(tmp_path, lab, content_rows=1)
    publication.setup()
    run(publication)
    lab.source.execute("INSERT INTO t VALUES (2, 'b')")
    lab.source.execute("DROP TABLE t")
    lab.source.execute("CREATE TABLE t (x int); INSERT INTO t VALUES (3), (4)")
    before = len(messages_of(tmp_path))
    publication.setup()
    run(publication)
    lab.source.execute("INSERT INTO t VALUES (5)")
    run(publication)

    messages = messages_of(tmp_path)[before:]
    receiver = Receiver()
    receiver.apply(messages)

    assert [told(message) for message in messages] == [
        ["DROP", "t"],
        ["CREATE", "t"],
        ["REPLICATION", "t", "INSERT"],
        ["REPLICATION", "t", "INSERT"],
        ["REPLICATION", "INSERT"],
    ]
    assert [message.head.attributes.get("_createCounter") for message in messages] == [None, "0", "1", "2", None]
    assert receiver.rows["t"] == Counter({(("x", number),): 1 for number in "345"})


def test_rows_beyond_the_limit_go_into_the_next_message_of_the_same_transaction(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    publication = opened(tmp_path, lab, max_rows=2, send_unchanged_updates=False)
    publication.setup()
    run(publication)
    before = len(messages_of(tmp_path))
    lab.source.execute("INSERT INTO t SELECT n FROM generate_series(1, 5) n")
    lab.source.execute("UPDATE t SET v = v")
    lab.source.execute("UPDATE t SET v = CASE WHEN id = 3 THEN 'x' END")
    run(publication)

    messages = messages_of(tmp_path)[before:]

    assert [(len(m.rows), m.keeps_transaction_open, m.head.attributes["_NUM_OF_TRANSACTIONS"]) for m in messages] == [
        (3, True, "0"),
        (2, False, "1"),
        (1, False, "1"),
    ]
    assert messages[2].rows[0].columns == {"id": "3", "v": "x"}


def test_what_no_receiver_understands_is_put_aside_and_can_be_retried_where_they_do(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    publication = opened(tmp_path, lab)
    publication.setup()
    run(publication)
    before = len(messages_of(tmp_path))
    with lab.source.transaction():
        lab.source.execute("INSERT INTO t VALUES (1, 'a')")
        lab.source.execute("TRUNCATE t")
    lab.source.execute("INSERT INTO t VALUES (2, 'b')")

    progress = run(publication)
    (entry,) = publication.errors().entries()
    retried = list(opened(tmp_path, lab, send_truncate=True).retry([entry.id]))
    run(publication)

    assert progress.errors == 1
    assert "was truncated, which receivers of this format do not know" in entry.error_message
    assert [one.outcome.value for one in retried] == ["applied"]
    messages = messages_of(tmp_path)[before:]
    assert [told(message) for message in messages] == [
        ["REPLICATION", "INSERT"],
        ["REPLICATION", "INSERT"],
        ["TRUNCATE", "t"],
    ]
    assert [message.rows[0].columns["id"] for message in messages[:2]] == ["2", "1"]
    assert [message.head.attributes["_MESSAGE_SEQ"] for message in messages] == ["2", "3", "4"]
    keys = [int(message.head.attributes["replKey"]) for message in messages]
    assert keys[1] < keys[2] < keys[0]
    assert publication.status().errors == 0


def test_status_says_that_the_first_copy_alone_was_published(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1)")
    publication = opened(tmp_path, lab)
    publication.setup()
    run(publication)

    found = publication.status()
    show(replace(found, low_watermark=0))

    assert found.copied == 1
    assert "messages, the first copy of 1 table, no change yet" in " ".join(capsys.readouterr().out.split())
