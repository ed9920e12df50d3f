"""The inputs whose histories `tests.fuzz.histories` mutates."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from penstock import change as c
from penstock.errors import PenstockError
from penstock.formats.debezium.decode import Settings
from penstock.formats.debezium.record import Record
from penstock.history import Consumer, History, Origin
from penstock.position import START, Anchor
from penstock.sources.debezium.log import Partition
from penstock.sources.debezium.reader import EventReader
from penstock.sources.debezium.source import DebeziumSource
from penstock.sources.debezium.tables import EventDecoder
from penstock.sources.debezium.tracker import Layout, Tracker
from tests.formats.debezium.events import SOURCES
from tests.fuzz.history import Input, Piece, Refused
from tests.sources.memory_log import ENDS, MemoryLog, tables
from tests.sources.test_debezium_repeats import TABLES, places
from tests.sources.test_debezium_tracker import EVERYTHING

_PATIENCE_S = 0.4
"""So long a run goes on without a change before it is said to wait."""


class Topics(Input):
    """What a connector writes of two tables, with a topic of transactions or without."""

    def __init__(self, connector: str, chance: random.Random, *, has_ends: bool) -> None:
        self.connector, self.has_ends = connector, has_ends
        # Their ENDs bear no place: the transaction topic has their order.
        self.says_order = not has_ends or connector not in ("mysql", "mariadb", "oracle")
        database, name = TABLES[connector]
        # Without ends, what comes of two topics at a time has no order between them.
        self.names = [name, f"{name}2"][: 2 if has_ends else 1]
        self.database, self.chance = database, chance
        topics = [*([ENDS] if has_ends else []), *(Partition(f"shop.{one}", 0) for one in self.names)]
        chance.shuffle(topics)
        self.log = MemoryLog({one: [] for one in topics}, at_once=chance.choice([1, 7, 50]))
        self.written: list[Piece] = []
        self.position = START
        self.origin: Origin | None = None
        self.anchor: Anchor | None = None
        self.name_of_other = chance.choice(["shop", "shop", "other"])
        self.loses_offsets = chance.random() < 0.3

    def transaction(self, server: str, number: int, place: int, values: Sequence[str]) -> Sequence[Piece]:
        key, made, counts = (server, number), list[Piece](), dict[str, int]()
        txn = 700 + number
        if self.has_ends:
            made.append(Piece(key, 0, ENDS.topic, self._boundary("BEGIN", txn, place, {})))
        for order, value in enumerate(values, 1):
            name = self.chance.choice(self.names)
            counts[name] = counts.get(name, 0) + 1
            event = self._event(server, name, txn, place, order, value)
            made.append(Piece(key, order, f"shop.{name}", event, (value,)))
        if self.has_ends:
            made.append(Piece(key, len(values) + 1, ENDS.topic, self._boundary("END", txn, place, counts)))
        return made

    def _event(self, server: str, name: str, txn: int, place: int, order: int, value: str) -> Mapping[str, Any]:
        id_, found = places(self.connector, txn, place, order)
        table = name.rpartition(".")[2]
        base = SOURCES["mysql" if self.connector == "mariadb" else self.connector]
        logical = "shop" if server == "a" else self.name_of_other
        source = {**base, "connector": self.connector, "name": logical, "table": table, **found}
        payload: dict[str, Any] = {"op": "c", "before": None, "after": {"v": value}, "source": source}
        if self.has_ends:
            payload["transaction"] = {"id": id_, "total_order": order, "data_collection_order": order}
        return payload

    def _boundary(self, status: str, txn: int, place: int, counts: Mapping[str, int]) -> Mapping[str, Any]:
        id_, _ = places(self.connector, txn, place, 99)
        told = [{"data_collection": name, "event_count": number} for name, number in counts.items()]
        counted = {"event_count": sum(counts.values()), "data_collections": told} if counts else {}
        return {"status": status, "id": id_, "event_count": None, "data_collections": None, "ts_ms": 5} | counted

    def write(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            key = None if piece.where == ENDS.topic else b'{"v": "x"}'
            record = Record(piece.where, key, json.dumps(piece.content).encode(), (), 0, None)
            self.log.append(Partition(piece.where, 0), record)
        self.written += pieces

    def spoiled(self, piece: Piece, chance: random.Random) -> Piece:
        content = json.loads(json.dumps(piece.content))
        if piece.where == ENDS.topic:
            if content["status"] == "END":
                content["event_count"] += chance.choice([-1, 1])
            return replace(piece, content=content)
        if "transaction" in content:
            content["transaction"]["total_order"] += chance.choice([-1, 1, 5])
            return replace(piece, content=content)
        return piece

    def damages(self) -> Mapping[str, Callable[[random.Random], Sequence[Piece]]]:
        anew = {"make a topic anew": self._anew}
        # Without ENDs and offsets nothing says how much there was.
        return anew if self.loses_offsets and not self.has_ends else {"lose the tail of a topic": self._cut, **anew}

    def _cut(self, chance: random.Random) -> Sequence[Piece]:
        topic = chance.choice(list(self.log.records))
        lost = chance.randint(1, 4)
        return self._keep(topic, max(0, len(self.log.records[topic]) - lost))

    def _anew(self, chance: random.Random) -> Sequence[Piece]:
        topic = chance.choice(list(self.log.records))
        self.log.ids[topic.topic] = "another"
        return self._keep(topic, 0)

    def _keep(self, topic: Partition, most: int) -> Sequence[Piece]:
        del self.log.records[topic][most:]
        kept, seen = list[Piece](), 0
        for piece in self.written:
            seen += piece.where == topic.topic
            if piece.where != topic.topic or seen <= most:
                kept.append(piece)
        self.written = kept
        return kept

    def run(self) -> tuple[Sequence[Sequence[str]], bool]:
        if self.loses_offsets:
            self.log.committed.clear()
        found: list[Sequence[str]] = []
        known = tables()
        tracker = Tracker(self.log, Layout(ENDS.topic, settle_s=0.02), known, "penstock.shop")
        try:
            with closing(DebeziumSource(self.log, tracker, known, ENDS.topic)) as source:
                is_new = self.origin is None
                history = History(Consumer("c", "shop"), self.origin, self.position, self.anchor, None, is_new)
                joined = source.join(history)
                self.origin, self.position, self.anchor = joined.origin, joined.position, joined.anchor
                at_end = self._follow(source, known, found)
                source.free(self.position, "c")
        except PenstockError as exc:
            raise Refused(found, exc) from exc
        return found, at_end

    def _follow(self, source: DebeziumSource, known: Any, found: list[Sequence[str]]) -> bool:
        end, until = source.tick(), time.monotonic() + _PATIENCE_S
        while self.position < end:
            source.wait(threading.Event(), 0.05)
            part = source.next_slice(self.position, EVERYTHING)
            if part is None:
                if time.monotonic() > until:
                    return False
                continue
            decoder = EventDecoder.of(Settings(), known.versions(), skips=False)
            follows = frozenset(version.table.name for version in known.versions())
            reader = EventReader(self.log, decoder, "shop", follows)
            found += _by_transaction(row for batch in reader.read(part) for row in batch.to_pylist())
            self.position, self.anchor = part.end, part.anchor
            until = time.monotonic() + _PATIENCE_S
        return True


def _by_transaction(rows: Any) -> Sequence[Sequence[str]]:
    found: dict[int, list[str]] = {}
    for row in rows:
        found.setdefault(row[c.COMMIT_SCN], []).append(json.loads(row[c.AFTER])["v"])
    return list(found.values())


def _topics(chance: random.Random, *, has_ends: bool) -> Input:
    return Topics(chance.choice(sorted(TABLES)), chance, has_ends=has_ends)


INPUTS: Mapping[str, Callable[[random.Random], Input]] = {
    "topics": partial(_topics, has_ends=True),
    "topics-without-ends": partial(_topics, has_ends=False),
}
