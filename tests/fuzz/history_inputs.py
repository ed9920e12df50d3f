"""The inputs whose histories `tests.fuzz.histories` mutates."""

from __future__ import annotations

import json
import random
import shutil
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock import change as c
from penstock.errors import PenstockError
from penstock.formats.archive_log import LOG_FOLDER
from penstock.formats.debezium.decode import DecodeSettings
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.xds.writer import document_of
from penstock.history import CaptureOrigin, Consumer, History
from penstock.position import START, Anchor
from penstock.sources.change_files.connector import ChangeFilesConnector
from penstock.sources.db2_log.buffers import Buffers
from penstock.sources.db2_log.source import Db2Log
from penstock.sources.debezium.files import FileLog
from penstock.sources.debezium.log import LogLayout, Partition
from penstock.sources.debezium.reader import EventReader
from penstock.sources.debezium.source import DebeziumSource
from penstock.sources.debezium.tables import EventDecoder, Tables
from penstock.sources.debezium.tracker import Tracker
from penstock.sources.recorded import RecordedConnector
from penstock.sources.xds.source import XdsConnector
from penstock.storage import LocalStorage
from tests import archives
from tests.formats.debezium.events import SOURCES
from tests.fuzz.history import Input, Piece, Refused
from tests.fuzz.history_dbwatcher import Watched
from tests.fuzz.history_event_log import EventTable
from tests.fuzz.history_files import Recording
from tests.sources.db2.encoder import Log, Varying, image, inline
from tests.sources.db2.test_round_trip import TABLE
from tests.sources.memory_log import ENDS, MemoryLog, tables
from tests.sources.test_debezium_repeats import TABLES, places
from tests.sources.test_debezium_tracker import EVERYTHING
from tests.sources.xds.test_source import ADD, added
from tests.sources.xds.test_source import TABLES as DESCRIBED

_PATIENCE_S = 0.4
"""So long a run goes on without a change before it is said to wait."""


class Topics(Input):
    """What a connector writes of two tables, with a topic of transactions or without."""

    def __init__(self, connector: str, chance: random.Random, *, has_ends: bool) -> None:
        super().__init__()
        self.connector, self.has_ends = connector, has_ends
        # The transaction topic has the order: what waited in an error queue is published late.
        self.says_order = not has_ends
        database, name = TABLES[connector]
        # Without ends, what comes of two topics at a time has no order between them.
        self.names = [name, f"{name}2"][: 2 if has_ends else 1]
        self.database, self.chance = database, chance
        topics = [*([ENDS] if has_ends else []), *(Partition(f"shop.{one}", 0) for one in self.names)]
        chance.shuffle(topics)
        self.log: Any = MemoryLog({one: [] for one in topics}, at_once=chance.choice([1, 7, 50]))
        self.written: list[Piece] = []
        self.position = START
        self.origin: CaptureOrigin | None = None
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
            record = TopicRecord(piece.where, key, json.dumps(piece.content).encode(), (), 0, None)
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

    def known(self) -> Tables:
        """The tables that are read: all that there is a topic of."""
        return tables()

    def run(self) -> tuple[Sequence[Sequence[str]], bool]:
        if self.loses_offsets:
            self.log.committed.clear()
        found: list[Sequence[str]] = []
        known = self.known()
        tracker = Tracker(self.log, LogLayout(ENDS.topic, settle_s=0.02), known, "penstock.shop")
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
            decoder = EventDecoder.of(DecodeSettings(), known.versions(), skips=False)
            follows = frozenset(version.table.name for version in known.versions())
            reader = EventReader(self.log, decoder, "shop", follows)
            found += _by_transaction(row for batch in reader.read(part) for row in batch.to_pylist())
            self.position, self.anchor = part.end, part.anchor
            until = time.monotonic() + _PATIENCE_S
        return True


class EventFiles(Topics):
    """The same as lines of files, of which more are written for each time that something comes."""

    def __init__(self, connector: str, chance: random.Random, *, has_ends: bool) -> None:
        super().__init__(connector, chance, has_ends=has_ends)
        self.loses_offsets = False
        self._made = TemporaryDirectory(prefix="penstock-history-")
        self.folder = Path(self._made.name)
        self.files: dict[str, Sequence[Piece]] = {}
        self.made = 0

    def write(self, pieces: Sequence[Piece]) -> None:
        self.made += 10
        self._put(f"{self.made:05}.jsonl", pieces)

    def _put(self, name: str, pieces: Sequence[Piece]) -> None:
        lines = (
            {"topic": one.where, "partition": 0, "key": {"v": "x"}, "value": one.content, "headers": []}
            for one in pieces
        )
        (self.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.files[name] = pieces

    def damages(self) -> Mapping[str, Callable[[random.Random], Sequence[Piece]]]:
        damages = {"take the last files away": self._cut, "take a file away": self._hole, "change a file": self._change}
        return {**damages, "a file comes below others": self._below, "cut a file off": self._shorten}

    def _cut(self, chance: random.Random) -> Sequence[Piece]:
        return self._without(sorted(self.files)[-chance.randint(1, 3) :])

    def _hole(self, chance: random.Random) -> Sequence[Piece]:
        return self._without([chance.choice(sorted(self.files))])

    def _without(self, names: Sequence[str]) -> Sequence[Piece]:
        for name in names:
            (self.folder / name).unlink()
            del self.files[name]
        return self._there()

    def _change(self, chance: random.Random) -> Sequence[Piece]:
        name = chance.choice(sorted(self.files))
        self._put(name, list(reversed(self.files[name])))
        return self._there()

    def _shorten(self, chance: random.Random) -> Sequence[Piece]:
        name = chance.choice(sorted(self.files))
        self._put(name, self.files[name][:-1])
        return self._there()

    def _below(self, chance: random.Random) -> Sequence[Piece]:
        name = chance.choice(sorted(self.files))
        self._put(name.replace("0.jsonl", "5.jsonl"), self.files[name])
        return self._there()

    def _there(self) -> Sequence[Piece]:
        return [piece for name in sorted(self.files) for piece in self.files[name]]

    def known(self) -> Tables:
        """All: before the first line of a table, files say nothing of it."""
        return Tables(DecodeSettings(), "shop", skips=False, is_wanted=lambda _: True)

    def run(self) -> tuple[Sequence[Sequence[str]], bool]:
        self.log = FileLog(LocalStorage(self.folder))
        return super().run()

    def close(self) -> None:
        self._made.cleanup()


class LogBuffers(Recording):
    """Log buffers of Db2, read without a filter: each record says where the one before it of its transaction lies."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.logs: dict[str, Log] = {}
        self.files = 0
        catalog = {"id": "SAMPLE of 2026", "framing": "raw"}
        (self.folder / "catalog.json").write_text(json.dumps(catalog) + json.dumps(TABLE))

    def transaction(self, server: str, number: int, place: int, values: Sequence[str]) -> Sequence[Piece]:
        log = self.logs.get(server)
        if log is None:
            at = self.chance.choice([0x1000, 0x1000 + place, max([0x1000, *(one.lso for one in self.logs.values())])])
            log = self.logs[server] = Log(is_raw=True, is_chained=True, lso=at)
        tid, begin = 700 + number, len(log.records)
        for order, value in enumerate(values):
            log.insert(
                tid, number * 10 + order, image([struct.pack("<i", order), Varying(value.encode()), inline(b"x")])
            )
        log.commit(tid)
        texts = [(value,) for value in values]
        return [
            Piece((server, number), order, "", record, text)
            for order, (record, text) in enumerate(zip(log.records[begin:], [*texts, ()], strict=True))
        ]

    def write(self, pieces: Sequence[Piece]) -> None:
        """Put records into a buffer of its own."""
        self.files += 1
        name = f"{self.files:09}.db2log"
        super().write([replace(pieces[0], where=name, content=b"".join(piece.content for piece in pieces))])
        self.written[-1:] = [replace(piece, where=name) for piece in pieces]

    def side(self) -> Any:
        return RecordedConnector(Db2Log(Buffers(LocalStorage(self.folder))))

    def value(self, row: Mapping[str, Any]) -> str:
        return str(json.loads(row[c.AFTER])["NAME"])

    def number_of(self, row: Mapping[str, Any]) -> int:
        return int(row[c.TXN_ID].rpartition(":")[2], 16) - 700


class Folder(Recording):
    """XDS documents, each of which is a transaction at the position that names it."""

    def transaction(self, server: str, number: int, place: int, values: Sequence[str]) -> Sequence[Piece]:
        events = [ADD.format(order, added("fname", value)) for order, value in enumerate(values)]
        name = f"{place:019d}.xml"
        return [Piece((server, number), 0, name, document_of(events), tuple(values))]

    def side(self) -> Any:
        return XdsConnector(LocalStorage(self.folder), ["idm.*"], lambda _: DESCRIBED)

    def value(self, row: Mapping[str, Any]) -> str:
        return str(json.loads(row[c.AFTER])["fname"])

    def number_of(self, row: Mapping[str, Any]) -> int:
        return int(row[c.COMMIT_SCN]) // 1000


class ChangeArchive(Recording):
    """Penstock's own change files; another server goes on from a copy of the archive that lacks the last ones."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self._beside = TemporaryDirectory(prefix="penstock-history-")
        self.archives: dict[str, Path] = {}
        self.states: list[list[str]] = []

    def transaction(self, server: str, number: int, place: int, values: Sequence[str]) -> Sequence[Piece]:
        folder = self.archives.get(server)
        made = Path(self._beside.name) / server
        begun: list[str] = []
        if folder is None:
            folder = self.archives[server] = made
            if server == "a":
                folder.mkdir()
                archives.publish_tables(LocalStorage(folder))
                self._a_begins(folder)
            else:
                begun = self.states[min(number, len(self.states)) - 1]
                for name in begun:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(self.archives["a"] / name, folder / name)
        there = set(names_in(folder))
        changes = [
            archives.row(place, seq, of=len(values), after={"id": str(seq), "name": value})
            for seq, value in enumerate(values)
        ]
        archives.publish_changes(LocalStorage(folder), place, archives.stream(changes))
        new = sorted(set(names_in(folder)) - there, key=lambda name: (name.startswith(LOG_FOLDER), name))
        if server == "a":
            self.states.append(names_in(folder))
        return [
            Piece((server, number), order, name, (folder / name).read_bytes(), tuple(values) if order == 0 else ())
            for order, name in enumerate(new)
        ]

    def _a_begins(self, folder: Path) -> None:
        """Put what is there before any change where it is read."""
        self.states.append(names_in(folder))
        for name in names_in(folder):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / name, self.folder / name)

    def side(self) -> Any:
        return ChangeFilesConnector(LocalStorage(self.folder))

    def value(self, row: Mapping[str, Any]) -> str:
        return str(json.loads(row[c.AFTER])["name"])

    def close(self) -> None:
        super().close()
        self._beside.cleanup()


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _by_transaction(rows: Any) -> Sequence[Sequence[str]]:
    found: dict[int, list[str]] = {}
    for row in rows:
        found.setdefault(row[c.COMMIT_SCN], []).append(json.loads(row[c.AFTER])["v"])
    return list(found.values())


def _files(chance: random.Random, *, has_ends: bool) -> Input:
    return EventFiles(chance.choice(sorted(TABLES)), chance, has_ends=has_ends)


def _topics(chance: random.Random, *, has_ends: bool) -> Input:
    return Topics(chance.choice(sorted(TABLES)), chance, has_ends=has_ends)


INPUTS: Mapping[str, Callable[[random.Random], Input]] = {
    "archive": ChangeArchive,
    "db2": LogBuffers,
    "dbwatcher": Watched,
    "dbwatcher-without-numbers": partial(Watched, is_numbered=False),
    "event-log": EventTable,
    "xds": Folder,
    "files": partial(_files, has_ends=True),
    "files-without-ends": partial(_files, has_ends=False),
    "topics": partial(_topics, has_ends=True),
    "topics-without-ends": partial(_topics, has_ends=False),
}
