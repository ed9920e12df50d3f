"""Where a pipeline that publishes events stands, as a list of entries: keys and values.

In Kafka they are the records of the position topic, which has one partition and is compacted: of each key the last
record counts, and a null value forgets the key. Those that change are written in the Kafka transaction that holds the
events, so that either both are there or none. In files all of them are in the last line of each.

Keys: `pipeline`, `run`, `origin`, `position`; `copied SCHEMA.TABLE` for each table whose rows were published; `copy ID`
and `chunk ID N` while they are being published; `requested SCHEMA.TABLE` for a copy that the next run is to make;
`cancelled SCHEMA.TABLE` for a table that is not published, since its copy was cancelled; `error N` and `part N K` of
the error queue (`put_aside.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.history import CaptureOrigin
from penstock.position import START, Anchor, Scn
from penstock.sinks.events.put_aside import PutAside, read_entries
from penstock.snapshot.chunk import Chunk
from penstock.stream import Slice

FORMAT = 1
"""Of the records below."""


class StateEntry(NamedTuple):
    """One thing that is kept; None forgets the key."""

    key: str
    value: Mapping[str, Any] | None

    @property
    def value_bytes(self) -> bytes | None:
        """The value as it is written."""
        return None if self.value is None else json.dumps(self.value, ensure_ascii=False).encode()


@dataclass(frozen=True)
class CopiedTable:
    """A table whose rows were published, as of a cut of the source; `id` is the source's own number of it."""

    table: TableName
    id: int
    cut: Anchor

    @property
    def entry(self) -> StateEntry:
        """As it is kept."""
        named = {"schema": self.table.schema, "name": self.table.name, "id": self.id, "cut": _cut_json(self.cut)}
        return StateEntry(f"copied {self.table.key}", named)


@dataclass(frozen=True)
class RequestedCopy:
    """A new copy of a table that a user has asked for.

    Attributes:
        id: The source's own number of the table.
        recreates: Receivers are to drop the table before they create it anew.
    """

    table: TableName
    id: int
    recreates: bool = False

    @property
    def entry(self) -> StateEntry:
        """As it is kept."""
        named = {"schema": self.table.schema, "name": self.table.name, "id": self.id, "recreates": self.recreates}
        return StateEntry(f"requested {self.table.key}", named)


@dataclass(frozen=True)
class OpenPublishedCopy:
    """A copy of tables that is under way.

    Attributes:
        snapshot: What it is as of, in the source's own text.
        taken_at_us: When that was taken, microseconds since 1970.
        ids: The tables, and the source's own number of each.
        is_first: Nothing was published before it.
        todo: The chunks that were not published yet, by their numbers.
        chunks: How many there are in all.
        rows: How many rows were published.
        records: How many records were published of each table.
        number: Tells the copy from others as of the same cut; 0 for the first of a pipeline.
        former: Where a table's last copy was, if the table was published until this copy began.
        drops: Tables that receivers have under the name, and drop before they create this one.
    """

    id: str
    cut: Anchor
    snapshot: str
    taken_at_us: int
    ids: Mapping[TableName, int]
    is_first: bool
    chunks: int
    todo: Mapping[int, Chunk] = field(default_factory=dict)
    rows: int = 0
    records: Mapping[TableName, int] = field(default_factory=dict)
    number: int = 0
    former: Mapping[TableName, Anchor] = field(default_factory=dict)
    drops: frozenset[TableName] = frozenset()

    @property
    def entry(self) -> StateEntry:
        """As it is kept, without its chunks."""
        value = {
            "cut": _cut_json(self.cut),
            "snapshot": self.snapshot,
            "taken_at_us": self.taken_at_us,
            "tables": [[name.schema, name.name, id_] for name, id_ in self.ids.items()],
            "is_first": self.is_first,
            "chunks": self.chunks,
            "rows": self.rows,
            "records": [[name.schema, name.name, count] for name, count in self.records.items()],
            "number": self.number,
            "former": [[name.schema, name.name, _cut_json(cut)] for name, cut in self.former.items()],
            "drops": [[name.schema, name.name] for name in sorted(self.drops)],
        }
        return StateEntry(f"copy {self.id}", value)

    def begun(self) -> list[StateEntry]:
        """What is written when it begins."""
        return [self.entry, *(StateEntry(f"chunk {self.id} {n}", _chunk_json(chunk)) for n, chunk in self.todo.items())]

    def without_chunks(self, numbers: Container[int], rows: int, records: Mapping[TableName, int]) -> OpenPublishedCopy:
        """The same copy once the rows of some chunks were published, too, as so many records of each table."""
        left = {number: chunk for number, chunk in self.todo.items() if number not in numbers}
        sent = {name: self.records.get(name, 0) + count for name, count in records.items()}
        return replace(self, todo=left, rows=self.rows + rows, records={**self.records, **sent})

    def progress(self, done: Iterable[int]) -> list[StateEntry]:
        """What is written in the transaction that holds the rows of some chunks."""
        return [self.entry, *(StateEntry(f"chunk {self.id} {number}", None) for number in done)]

    def ended(self) -> list[StateEntry]:
        """What is written when all chunks were published."""
        whole = [CopiedTable(name, id_, self.cut).entry for name, id_ in self.ids.items()]
        return [*whole, StateEntry(f"copy {self.id}", None)]

    def left_out(self, tables: Container[TableName]) -> tuple[OpenPublishedCopy, list[StateEntry]]:
        """The same copy without some tables, and what is written of that."""
        numbers = [number for number, chunk in self.todo.items() if chunk.table in tables]
        ids = {name: id_ for name, id_ in self.ids.items() if name not in tables}
        copy = replace(self.without_chunks(numbers, 0, {}), ids=ids, chunks=self.chunks - len(numbers))
        entries = copy.progress(numbers)
        return copy, entries if ids else [StateEntry(copy.entry.key, None), *entries[1:]]


@dataclass(frozen=True)
class PublishedState:
    """Where a pipeline stands.

    Attributes:
        id: Drawn when `setup` made the topic; empty where that was not done.
        source: The name of the source that the pipeline publishes.
        epoch: Counts the runs.
        position: Every transaction at or before it was published, and none behind it.
        anchor: The source's last cut at or before that.
        newest: The last cut that anything published is of.
        transactions, changes: How many were published so far.
        records: As how many records, those of copies among them.
        written_at: When the position was written.
        requested: Tables of which a new copy is to be made.
        cancelled: Tables that are not published since their copy was cancelled, and the source's number of each.
        errors: The error queue, by number; `last_error` is the last number that was given.
    """

    id: str = ""
    source: str = ""
    epoch: int = 0
    origin: CaptureOrigin | None = None
    position: Scn = START
    anchor: Anchor | None = None
    newest: Anchor | None = None
    transactions: int = 0
    changes: int = 0
    records: int = 0
    written_at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    tables: Mapping[TableName, CopiedTable] = field(default_factory=dict)
    copies: Mapping[str, OpenPublishedCopy] = field(default_factory=dict)
    requested: Mapping[TableName, RequestedCopy] = field(default_factory=dict)
    cancelled: Mapping[TableName, int] = field(default_factory=dict)
    errors: Mapping[int, PutAside] = field(default_factory=dict)
    last_error: int = 0

    @property
    def copied(self) -> Mapping[TableName, Scn]:
        """The tables whose rows were published, and the position of each copy."""
        return {name: table.cut.scn for name, table in self.tables.items()}

    @property
    def withheld(self) -> Mapping[TableName, int]:
        """Those of `cancelled` of which no new copy was requested."""
        asked = {name: request.id for name, request in self.requested.items()}
        return {name: id_ for name, id_ in self.cancelled.items() if asked.get(name) != id_}

    def is_copied(self, id_: int, table: TableName) -> bool:
        """Whether the rows of a table were published under the name that it has, and no other copy was asked for."""
        request = self.requested.get(table)
        if request is not None and request.id == id_:
            return False
        of_id = [known for known in self.tables.values() if known.id == id_]
        newest = max(of_id, key=lambda known: known.cut.scn, default=None)
        return newest is not None and newest.table == table

    def has_copied_since(self, table: TableName, entry: PutAside) -> bool:
        """Whether a copy of a table, one that is under way included, is as of a later position than an entry.

        Such a copy holds what the entry says of the table; a row that was put aside by that copy itself it does not.
        """
        cuts = [self.tables[table].cut.scn] if table in self.tables else []
        cuts += [copy.cut.scn for copy in self.copies.values() if table in copy.ids]
        return any(entry.commit_scn < cut or (entry.commit_scn == cut and not entry.is_of_copy) for cut in cuts)

    def with_copy(self, copy: OpenPublishedCopy) -> PublishedState:
        """The same with a copy as it is now; one without tables is none."""
        others = {id_: other for id_, other in self.copies.items() if id_ != copy.id}
        return replace(self, copies={**others, copy.id: copy} if copy.ids else others)

    def requesting(self, requests: Iterable[RequestedCopy]) -> tuple[PublishedState, list[StateEntry]]:
        """The same with copies that were asked for, and what is written of that."""
        new = {one.table: one for one in requests}
        return replace(self, requested={**self.requested, **new}), [one.entry for one in new.values()]

    def without_requests(self, tables: Container[TableName]) -> tuple[PublishedState, list[StateEntry]]:
        """The same once copies are not asked for any more, and what is written of that."""
        gone = [one for name, one in self.requested.items() if name in tables]
        left = {name: one for name, one in self.requested.items() if name not in tables}
        return replace(self, requested=left), [StateEntry(one.entry.key, None) for one in gone]

    def beginning(self, copy: OpenPublishedCopy) -> tuple[PublishedState, list[StateEntry]]:
        """The same once a copy begins: what was published of its tables does not count any more."""
        state, entries = self.without_requests(copy.ids)
        again = [table for name, table in self.tables.items() if copy.ids.get(name) == table.id]
        tables = {name: table for name, table in self.tables.items() if table not in again}
        cancelled = {name: id_ for name, id_ in self.cancelled.items() if name not in copy.ids}
        entries += [StateEntry(table.entry.key, None) for table in again]
        entries += [StateEntry(_cancelled_key(name), None) for name in self.cancelled.keys() - cancelled.keys()]
        return replace(state, tables=tables, cancelled=cancelled).with_copy(copy), [*entries, *copy.begun()]

    def leaving_out(
        self, copy: OpenPublishedCopy, tables: Collection[TableName]
    ) -> tuple[PublishedState, list[StateEntry]]:
        """The same once an open copy goes on without some tables, and what is written of that.

        A copy that a user has asked for stays asked for.
        """
        left, entries = copy.left_out(tables)
        again = [RequestedCopy(name, copy.ids[name], name in copy.drops) for name in copy.former if name in tables]
        state, more = replace(self.with_copy(left), newest=self.newest_cut).requesting(again)
        return state, [*entries, *more, state.position_entry]

    def cancelling(
        self, copy: OpenPublishedCopy, tables: Iterable[TableName]
    ) -> tuple[PublishedState, list[StateEntry]]:
        """The same once some tables of an open copy are not to be copied any more, and what is written of that.

        A table of which nothing was published is as it was before; the others are not published until a copy is
        requested.
        """
        names = [name for name in tables if name in copy.ids]
        left, entries = copy.left_out(names)
        whole = {
            name: CopiedTable(name, copy.ids[name], copy.former[name])
            for name in names
            if name in copy.former and not copy.records.get(name)
        }
        gone = {name: copy.ids[name] for name in names if name not in whole}
        state = replace(self.with_copy(left), newest=self.newest_cut, cancelled={**self.cancelled, **gone})
        state = replace(state, tables={**self.tables, **whole})
        entries += [table.entry for table in whole.values()]
        entries += [_cancelled_entry(name, id_) for name, id_ in gone.items()]
        return state, [*entries, state.position_entry]

    def with_copied(self, copy: OpenPublishedCopy) -> PublishedState:
        """The same once all chunks of a copy were published."""
        others = {id_: other for id_, other in self.copies.items() if id_ != copy.id}
        whole = {name: CopiedTable(name, id_, copy.cut) for name, id_ in copy.ids.items()}
        return replace(self, copies=others, tables={**self.tables, **whole})

    def putting_aside(self, found: Sequence[PutAside]) -> tuple[PublishedState, list[StateEntry]]:
        """The same with more in the error queue, and what is written of that."""
        new = [one.numbered(number) for number, one in enumerate(found, start=self.last_error + 1)]
        errors = {**self.errors, **{one.number: one for one in new}}
        published_state = replace(self, errors=errors, last_error=self.last_error + len(new))
        entries = [StateEntry(*record) for one in new for record in one.records()]
        return published_state, [*entries, published_state.position_entry] if entries else []

    def with_holds(self, entries: Iterable[PutAside]) -> tuple[PublishedState, list[StateEntry]]:
        """The same with entries of the error queue that are on hold, or so no more, and what is written of that."""
        marked = {one.number: one for one in entries}
        heads = [StateEntry(*one.records()[0]) for one in marked.values()]
        return replace(self, errors={**self.errors, **marked}), heads

    def without_errors(self, numbers: Iterable[int]) -> tuple[PublishedState, list[StateEntry]]:
        """The same without entries of the error queue, and what is written of that."""
        gone = [self.errors[number] for number in numbers]
        left = {number: one for number, one in self.errors.items() if one not in gone}
        return replace(self, errors=left), [StateEntry(key, None) for one in gone for key in one.keys]

    @property
    def newest_cut(self) -> Anchor | None:
        """The last cut that anything published is of, copies included."""
        cuts = [table.cut for table in self.tables.values()] + [copy.cut for copy in self.copies.values()]
        cuts += [cut for cut in (self.anchor, self.newest) if cut is not None]
        return max(cuts, key=lambda cut: cut.scn, default=None)

    def behind(self, part: Slice, transactions: int, changes: int) -> PublishedState:
        """Where it stands once a slice was published, which begins where it stands now."""
        return replace(
            self.moved(part.end, part.anchor),
            newest=part.cut if part.cut is not None else self.newest,
            transactions=self.transactions + transactions,
            changes=self.changes + changes,
        )

    def with_records(self, records: int) -> PublishedState:
        """The same with so many records more."""
        return replace(self, records=self.records + records)

    def moved(self, position: Scn, anchor: Anchor | None) -> PublishedState:
        """The same at another position, with the last cut at or before it where that is another one."""
        at = self.anchor if anchor is None else anchor
        return replace(self, position=position, anchor=at, written_at=datetime.now(UTC))

    def entries(self) -> list[StateEntry]:
        """All that is kept."""
        made = [self.header_entry, self.run_entry, *([self.origin_entry] if self.origin is not None else [])]
        made += [self.position_entry, *(table.entry for table in self.tables.values())]
        made += [one.entry for one in self.requested.values()]
        made += [_cancelled_entry(name, id_) for name, id_ in self.cancelled.items()]
        for copy in self.copies.values():
            made += copy.begun()
        return [*made, *(StateEntry(*record) for error in self.errors.values() for record in error.records())]

    @property
    def header_entry(self) -> StateEntry:
        """What the topic is, as it is kept."""
        return StateEntry("pipeline", {"version": FORMAT, "id": self.id, "source": self.source})

    @property
    def run_entry(self) -> StateEntry:
        """The epoch, as it is kept."""
        return StateEntry("run", {"epoch": self.epoch})

    @property
    def origin_entry(self) -> StateEntry:
        """The origin, as it is kept."""
        assert self.origin is not None
        return StateEntry("origin", {"set_id": self.origin.set_id, "place": self.origin.place})

    @property
    def position_entry(self) -> StateEntry:
        """The position and what goes with it, as it is kept."""
        value = {
            "position": self.position,
            "anchor": _cut_json(self.anchor),
            "newest": _cut_json(self.newest),
            "transactions": self.transactions,
            "changes": self.changes,
            "records": self.records,
            "written_at": self.written_at.isoformat(),
            "last_error": self.last_error,
        }
        return StateEntry("position", value)


def published_state_of(records: Iterable[tuple[bytes | None, bytes | None]], *, where: str) -> PublishedState:
    """Put together what records say, keys and values in the order of the topic.

    Raises:
        MalformedInputError: One of them is no record of a position topic.
    """
    last: dict[str, Any] = {}
    try:
        for key, value in records:
            name = (key or b"").decode()
            if value is None:
                last.pop(name, None)
            else:
                last[name] = json.loads(value)
        return _read(last)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as exc:
        raise MalformedInputError(
            "a record is not one that says where a pipeline stands",
            where=where,
            do="let nothing else write there",
        ) from exc


def _read(last: Mapping[str, Any]) -> PublishedState:
    header, run, position = last.get("pipeline", {}), last.get("run", {}), last.get("position", {})
    if header and header["version"] != FORMAT:
        raise ValueError
    origin = last.get("origin")
    tables = [_copied(value) for key, value in last.items() if key.startswith("copied ")]
    copies = [_open_copy(key, value, last) for key, value in last.items() if key.startswith("copy ")]
    requested = [_requested(value) for key, value in last.items() if key.startswith("requested ")]
    found = PublishedState(
        id=header.get("id", ""),
        source=header.get("source", ""),
        epoch=run.get("epoch", 0),
        origin=None if origin is None else CaptureOrigin(origin["set_id"], origin["place"]),
        tables={table.table: table for table in tables},
        copies={copy.id: copy for copy in copies},
        requested={one.table: one for one in requested},
        cancelled={
            TableName(value["schema"], value["name"]): int(value["id"])
            for key, value in last.items()
            if key.startswith("cancelled ")
        },
        errors={error.number: error for error in read_entries(last)},
    )
    if not position:
        return found
    return replace(
        found,
        position=Scn(int(position["position"])),
        anchor=_cut(position["anchor"]),
        newest=_cut(position["newest"]),
        transactions=int(position["transactions"]),
        changes=int(position["changes"]),
        records=int(position.get("records", 0)),
        written_at=datetime.fromisoformat(position["written_at"]),
        last_error=int(position.get("last_error", 0)),
    )


def _copied(value: Mapping[str, Any]) -> CopiedTable:
    cut = _cut(value["cut"])
    if cut is None:
        raise ValueError
    return CopiedTable(TableName(value["schema"], value["name"]), int(value["id"]), cut)


def _requested(value: Mapping[str, Any]) -> RequestedCopy:
    return RequestedCopy(TableName(value["schema"], value["name"]), int(value["id"]), bool(value["recreates"]))


def _cancelled_key(table: TableName) -> str:
    return f"cancelled {table.key}"


def _cancelled_entry(table: TableName, id_: int) -> StateEntry:
    return StateEntry(_cancelled_key(table), {"schema": table.schema, "name": table.name, "id": id_})


def _open_copy(key: str, value: Mapping[str, Any], last: Mapping[str, Any]) -> OpenPublishedCopy:
    id_ = key.removeprefix("copy ")
    cut = _cut(value["cut"])
    if cut is None:
        raise ValueError
    of_chunk = f"chunk {id_} "
    todo = {int(k.removeprefix(of_chunk)): _chunk(v) for k, v in last.items() if k.startswith(of_chunk)}
    return OpenPublishedCopy(
        id=id_,
        cut=cut,
        snapshot=value["snapshot"],
        taken_at_us=int(value["taken_at_us"]),
        ids={TableName(schema, name): int(number) for schema, name, number in value["tables"]},
        is_first=bool(value["is_first"]),
        chunks=int(value["chunks"]),
        todo=dict(sorted(todo.items())),
        rows=int(value["rows"]),
        records={TableName(schema, name): int(count) for schema, name, count in value.get("records", ())},
        number=int(value.get("number", 0)),
        former={
            TableName(schema, name): found
            for schema, name, former in value.get("former", ())
            if (found := _cut(former)) is not None
        },
        drops=frozenset(TableName(schema, name) for schema, name in value.get("drops", ())),
    )


def _cut_json(cut: Anchor | None) -> Sequence[Any] | None:
    return None if cut is None else [cut.scn, cut.mark]


def _cut(value: Sequence[Any] | None) -> Anchor | None:
    return None if value is None else Anchor(Scn(int(value[0])), str(value[1]))


def _chunk_json(chunk: Chunk) -> Mapping[str, Any]:
    named = {"schema": chunk.table.schema, "name": chunk.table.name, "number": chunk.number}
    return named | {"bounds": chunk.bounds, "is_by_text": chunk.is_by_text, "size_bytes": chunk.size_bytes}


def _chunk(value: Mapping[str, Any]) -> Chunk:
    return Chunk(
        TableName(value["schema"], value["name"]),
        int(value["number"]),
        value["bounds"]["after"],
        value["bounds"]["upto"],
        bool(value["is_by_text"]),
        value["size_bytes"],
    )
