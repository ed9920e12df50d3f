"""Rows of a snapshot that come among changes are read where they stand: behind what lies before them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from penstock import change as c
from penstock.change import TableName
from penstock.formats.debezium.decode import DecodeSettings
from penstock.formats.debezium.record import TopicRecord, read_line
from penstock.position import START, Limit, Scn
from penstock.sources.debezium.index import CompleteTransaction, OffsetRange
from penstock.sources.debezium.log import Partition, RecordLog
from penstock.sources.debezium.reader import EventReader
from penstock.sources.debezium.slice import slice_of
from penstock.sources.debezium.tables import EventDecoder, Tables
from tests.contracts.sources import Events, end_record, event_record

ITEM, BOOK = TableName("public", "item"), TableName("public", "book")


def change(table: str, op: str, txn: str, order: int, id_: int, name: str) -> Mapping[str, Any]:
    image = {"id": id_, "name": name}
    block = {"id": txn, "total_order": order, "data_collection_order": order}
    before, after = (image, None) if op == "d" else (None if op == "c" else {**image, "name": "old"}, image)
    return event_record(table, op, before, after, block=block)


def row(table: str, id_: int, name: str) -> Mapping[str, Any]:
    return event_record(table, "r", None, {"id": id_, "name": name}, snapshot="incremental")


def read(events: Events, limit: Limit = Limit()) -> list[tuple[int, str, str, str | None]]:
    """What is read: number of the transaction, operation, table, and the name in the new image or the old one."""
    side = events.side()
    source = side.open_source()
    reader = side.access.reader("shop", source.tables(), follows=(ITEM, BOOK))
    found, after, scns = [], START, []
    while (part := source.next_slice(after, limit)) is not None:
        after = part.end
        for batch in reader.read(part):
            for one in batch.to_pylist():
                scns.append(one[c.COMMIT_SCN])
                image = json.loads(one[c.AFTER] or one[c.BEFORE])
                found.append((len(set(scns)), one[c.OP], one[c.TABLE_NAME], image.get("name")))
    source.close()
    return found


@pytest.fixture
def events(tmp_path: Path) -> Events:
    made = Events(tmp_path / "events")
    # Rows wait for a transaction that has begun before them, and this one never ends.
    (made.folder / "000001.jsonl").unlink()
    return made


@pytest.mark.rule("A-226")
def test_a_row_comes_behind_the_change_that_lies_before_it(events: Events) -> None:
    events.write(
        [
            change("item", "c", "1", 1, 1, "made"),
            change("item", "u", "1", 2, 1, "changed"),
            row("item", 1, "as it stands"),
            change("item", "u", "2", 1, 1, "later"),
            end_record("1", ["public.item"] * 2),
            end_record("2", ["public.item"]),
        ]
    )

    assert read(events) == [
        (1, "insert", "item", "made"),
        (1, "update", "item", "changed"),
        (1, "snapshot", "item", "as it stands"),
        (2, "update", "item", "later"),
    ]


@pytest.mark.rule("A-226")
@pytest.mark.parametrize("limit", [Limit(), Limit(large_changes=2)], ids=["held", "streamed"])
def test_a_row_stays_between_the_changes_of_one_transaction(events: Events, limit: Limit) -> None:
    events.write(
        [
            change("item", "c", "1", 1, 1, "first"),
            row("item", 7, "between"),
            change("book", "c", "1", 2, 1, "in another table"),
            change("item", "c", "1", 3, 2, "last"),
            end_record("1", ["public.item", "public.item", "public.book"]),
        ]
    )

    assert [name for _, _, _, name in read(events, limit)] == ["first", "between", "in another table", "last"]


class ByTopic:
    """A log with a partition for each topic, as far as a reader asks for it."""

    label = "here"

    def __init__(self, *lines: Mapping[str, Any]) -> None:
        records = [read_line(json.dumps(line).encode(), file="here", number=1) for line in lines]
        topics = sorted({one.topic for one in records})
        self.partitions = tuple(Partition(topic, 0) for topic in topics)
        self._records = {
            partition: [
                replace(one, offset=n) for n, one in enumerate(one for one in records if one.topic == partition.topic)
            ]
            for partition in self.partitions
        }
        self.tables = Tables(DecodeSettings(), "shop", skips=False)
        for one in records:
            self.tables.look(one)

    def read(self, partition: Partition, first: int, end: int) -> Iterator[TopicRecord]:
        yield from self._records[partition][first:end]


@pytest.mark.rule("A-226")
def test_a_row_comes_behind_a_transaction_of_other_topics() -> None:
    log = ByTopic(row("book", 1, "as it stands"), change("item", "c", "1", 1, 1, "x"))
    whole = CompleteTransaction(Scn(1), ("1",), (OffsetRange(1, 0, 1),), (OffsetRange(0, 0, 1),), 1, 10, 0)
    decoder = EventDecoder.of(DecodeSettings(), log.tables.versions(), skips=False)

    reader = EventReader(cast(RecordLog, log), decoder, "shop", frozenset({ITEM, BOOK}))
    (batch,) = reader.read(slice_of(START, Scn(1), [whole], log.partitions))

    assert batch[c.OP].to_pylist() == ["insert", "snapshot"]
    assert batch[c.TABLE_NAME].to_pylist() == ["item", "book"]
