"""Event logs as an input of `tests.fuzz.histories`: a table of one server, which histories use one after the other."""

from __future__ import annotations

import atexit
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import psycopg

from penstock import change as c
from penstock.change import TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.connection import Connection, connect
from penstock.dialects.postgres.source.event_journal import PostgresJournal
from penstock.dialects.postgres.source.event_log import PostgresEventLog
from penstock.dialects.postgres.source.event_log_setup import journal_step, log_step
from penstock.errors import PenstockError
from penstock.history import CaptureOrigin, Consumer, History
from penstock.position import START, Anchor, Limit
from penstock.schema import TableSchema
from penstock.sources.event_log.failures import Failures
from penstock.sources.event_log.settings import EventLogSettings
from penstock.sources.event_log.source import EventLogSource
from penstock.sources.recorded import RecordedReader
from tests.fuzz.history import Input, Key, Piece, Refused

_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

_LOG = TableName("indirect", "event_log")

_COLUMNS = ("fname", "lname", "note")

_TABLES = (
    "CREATE SCHEMA indirect; CREATE TABLE indirect.usr (idu integer PRIMARY KEY, fname text, lname text, note text)"
)

_STATE = (
    "indirect.event_log",
    *(f"penstock_idm_events.{name}" for name in ("journal", "event", "change", "child_row", "failed")),
)
"""The log, and all tables of its journal."""

_LIMITS = (0, 1, 2, 3, 4, 7)

Row = tuple[int, str, str | None, str | None]
"""What a writer says of a row's object: type, key, column and new value."""

State = tuple[Mapping[str, Sequence[Any]], list[Piece], int]


class EventTable(Input):
    """Rows that several writers have logged, each change of a row in a transaction of its own, in turns.

    Nobody can know that a writer's transaction lacks a row, or that a row which is new was read before: so writers
    write their rows at once, and what is there already is not written again.
    """

    # A writer that was kept waiting has lower numbers than what was read before its rows came.
    says_order = False

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.sql = _session()
        self.settings = EventLogSettings(
            _LOG,
            future_events=chance.random() < 0.2,
            delete_processed=chance.random() < 0.3,
            polling_interval_s=0,
        )
        self._empty()
        self.next_id = 1000
        self.position = START
        self.origin: CaptureOrigin | None = None
        self.anchor: Anchor | None = None
        self.written: list[Piece] = []
        self.known: set[Key] = set()
        self.states: list[State] = []
        # The first row behind each value.
        self.ids: dict[str, int] = {}

    def transaction(self, server: str, number: int, place: int, values: Sequence[str]) -> Sequence[Piece]:
        key = f"idu={number + 1000 * ord(server)}"
        named = list(zip(_COLUMNS, values, strict=False))
        kind = self.chance.choice(["insert", "insert", "update", "now", "again", "gone"])
        rows: list[Row] = []
        match kind:
            case "update":
                rows = [(self.chance.choice([2, 3]), key, column, value) for column, value in named]
            case "now":
                rows = [(7, key, column, None) for column, _ in named]
                padded = [*values, *[None] * (len(_COLUMNS) - len(values))]
                self.sql.execute(
                    "INSERT INTO indirect.usr VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING", [key[4:], *padded]
                )
            case _:
                rows = [(1, key, column, value) for column, value in named]
                rows = [(4, key, None, None), *rows] if kind == "again" else rows
                rows = [*rows, (4, key, None, None)] if kind == "gone" else rows
        return [Piece((server, number), 0, "", rows, tuple(values))]

    def write(self, pieces: Sequence[Piece]) -> None:
        """Write each piece in a transaction of its own; the numbers of their rows are those of writers in turns."""
        self._remember()
        # What was taken away does not come back.
        self.overwritten |= {piece.of for piece in pieces} & self.known - {piece.of for piece in self.written}
        new = list({piece.of: piece for piece in reversed(pieces) if piece.of not in self.known}.values())[::-1]
        self.known |= {piece.of for piece in new}
        turns = [piece for piece in new for _ in piece.content if piece.where != "late"]
        if self.chance.random() < 0.8:
            self.chance.shuffle(turns)
        numbers: dict[Key, list[int]] = {piece.of: [] for piece in new}
        for piece in turns:
            self.next_id += self.chance.choice([1, 1, 1, 40])
            numbers[piece.of].append(self.next_id)
        for piece in new:
            # Such a writer was given its numbers long before the others.
            ids = numbers[piece.of] or self.chance.sample(range(1, 900), len(piece.content))
            self._insert(piece, sorted(ids))
        self.written += new
        self._remember()

    def _insert(self, piece: Piece, ids: Sequence[int]) -> None:
        try:
            with self.sql.transaction():
                self.sql.cursor().executemany(
                    "INSERT INTO indirect.event_log"
                    " (record_id, event_type, table_name, table_key, column_name, new_value)"
                    " VALUES (%s, %s, 'usr', %s, %s, %s)",
                    [(id_, *row) for id_, row in zip(ids, piece.content, strict=True)],
                )
        except psycopg.errors.UniqueViolation:
            self._insert(piece, range(self.next_id + 1, self.next_id + 1 + len(piece.content)))
            self.next_id += len(piece.content)
        else:
            first = next(id_ for id_, row in zip(ids, piece.content, strict=True) if row[0] != 4)
            self.ids |= dict.fromkeys(piece.values, first)

    def spoiled(self, piece: Piece, chance: random.Random) -> Piece:
        return replace(piece, where="late")

    def damages(self) -> Mapping[str, Callable[[random.Random], Sequence[Piece]]]:
        return {
            "restore an older state": self._restore,
            "take away what is settled": self._clean,
            "take the last rows away": self._cut,
            "begin the log anew": self._begin_anew,
            "begin the journal anew": self._another_journal,
        }

    def _restore(self, chance: random.Random) -> Sequence[Piece]:
        state, written, self.next_id = chance.choice(self.states[:-1])
        self.written = list(written)
        with self.sql.transaction():
            self.sql.execute(f"TRUNCATE {', '.join(_STATE)}")
            for name, rows in state.items():
                self.sql.cursor().executemany(
                    f"INSERT INTO {name} SELECT * FROM jsonb_populate_record(NULL::{name}, %s::jsonb)",
                    [(row,) for row in rows],
                )
        return self.written

    def _clean(self, chance: random.Random) -> Sequence[Piece]:
        self.sql.execute("DELETE FROM indirect.event_log WHERE status <> 'N'")
        return self.written

    def _cut(self, chance: random.Random) -> Sequence[Piece]:
        gone = self.written[-chance.randint(1, 3) :]
        keys = [row[1] for piece in gone for row in piece.content]
        self.sql.execute("DELETE FROM indirect.event_log WHERE table_key = ANY (%s)", [keys])
        self.written = self.written[: -len(gone)] if gone else self.written
        return self.written

    def _begin_anew(self, chance: random.Random) -> Sequence[Piece]:
        self.sql.execute("TRUNCATE indirect.event_log")
        self.next_id = 1000
        self.written = []
        return []

    def _another_journal(self, chance: random.Random) -> Sequence[Piece]:
        _make_journal(self.sql)
        return self.written

    def _remember(self) -> None:
        state = {
            name: [row for (row,) in self.sql.execute(f"SELECT to_jsonb(t)::text FROM {name} t")] for name in _STATE
        }
        self.states.append((state, list(self.written), self.next_id))

    def _empty(self) -> None:
        self.sql.execute("TRUNCATE indirect.event_log, indirect.usr")
        _make_journal(self.sql)

    def run(self) -> tuple[Sequence[Sequence[str]], bool]:
        found: list[Sequence[str]] = []
        try:
            # A process that dies is started again.
            while (at_end := self._follow(found)) is None:
                pass
        except PenstockError as exc:
            raise Refused(found, exc) from exc
        finally:
            self._remember()
        return found, at_end

    def _follow(self, found: list[Sequence[str]]) -> bool | None:
        """Read on, and add the values of each event; returns whether that is all, and None where the process dies."""
        chance = self.chance
        settings = replace(self.settings, query_limit=chance.choice(_LIMITS))
        limit = Limit(max_transactions=chance.choice([1, 2, 1000]))
        journal = _Journal(_url(), "idm", settings, ("indirect.*",))
        polled = int(self.sql.execute("SELECT position FROM penstock_idm_events.journal").fetchone()[0])
        firsts: list[int] = []
        with closing(EventLogSource(journal, Failures())) as source:
            source.open()
            is_new = self.origin is None
            history = History(Consumer("c", "idm"), self.origin, self.position, self.anchor, self.anchor, is_new)
            joined = source.join(history)
            self.origin, self.position, self.anchor = joined.origin, joined.position, joined.anchor
            end = source.tick()
            while self.position < end and (part := source.next_slice(self.position, limit)) is not None:
                if chance.random() < 0.05:
                    # What it was to apply comes again.
                    return None
                if len(part):
                    for batch in RecordedReader(journal, "idm", None).read(part):
                        found += _by_event(batch.to_pylist(), polled, self.ids, firsts)
                self.position, self.anchor = part.end, part.anchor
            if chance.random() < 0.5:
                source.settle(self.position)
        if firsts != sorted(firsts) and not settings.future_events:
            raise AssertionError(f"events came in the order {firsts} of their first rows")
        return self.position >= end


def _by_event(
    rows: Sequence[Mapping[str, Any]], polled: int, ids: Mapping[str, int], firsts: list[int]
) -> Sequence[Sequence[str]]:
    found: dict[int, list[str]] = {}
    for row in rows:
        after = json.loads(row[c.AFTER]) if row[c.AFTER] else {}
        values = [after[name] for name in _COLUMNS if after.get(name) is not None]
        found.setdefault(row[c.COMMIT_SCN], []).extend(values)
        if values and row[c.COMMIT_SCN] > polled:
            firsts.append(ids[values[0]])
    return list(found.values())


@cache
def _url() -> str:
    """A database with a log, in a server that goes with the process."""
    server = EmbeddedPostgres(settings=_FAST)
    atexit.register(server.remove)
    server.start()
    return server.url()


@cache
def _session() -> Connection:
    session = connect(_url(), "penstock histories")
    session.execute(_TABLES)
    session.execute(log_step(EventLogSettings(_LOG)).sql)
    _make_journal(session)
    return session


@cache
def _tables() -> Sequence[TableSchema]:
    with closing(PostgresEventLog(_url(), "idm", EventLogSettings(_LOG), ("indirect.*",))) as log:
        return log.tables()


def _make_journal(session: Connection) -> None:
    session.execute("DROP SCHEMA IF EXISTS penstock_idm_events CASCADE")
    session.execute(journal_step("idm", _LOG).sql)


class _Journal(PostgresJournal):
    """One that has the session of all histories, and describes the tables once: they stay as they are."""

    def open_log(self) -> PostgresEventLog:
        return _Log(self.url, self.pipeline, self.settings, self.patterns)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        yield _session()


class _Log(PostgresEventLog):
    def tables(self) -> Sequence[TableSchema]:
        return _tables()

    def close(self) -> None:
        pass

    def _open(self) -> Connection:
        return _session()
