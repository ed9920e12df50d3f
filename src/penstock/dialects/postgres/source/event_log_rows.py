"""What is done inside a transaction with an event log in PostgreSQL, and with the journal beside it.

The journal is in a schema of its own, `penstock_<pipeline>_events`. Its one row in `journal` is locked by every
transaction that polls or settles, so they follow one another.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from penstock.change import Change, TableName
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.source.event_log_columns import BoundColumns
from penstock.dialects.postgres.source.event_log_now import read_current
from penstock.errors import OperatorError
from penstock.events import Event, tell
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.sources.event_log.build import Current, Wanted
from penstock.sources.event_log.classes import Classes, DatabaseClass
from penstock.sources.event_log.edge import Edge
from penstock.sources.event_log.poll import ChildRows, JournalEvent, LogTransaction, Pending
from penstock.sources.event_log.rows import LogRow, Object, RowOutcome
from penstock.sources.event_log.settings import EventLogSettings
from penstock.sources.recorded import key_of
from penstock.text import count
from penstock.values import encode_image

_COPY_EVENTS = "COPY {} (position, record_ids, digests, changes, size_bytes, logged_at_us, element) FROM STDIN"

_COPY_CHANGES = "COPY {} (position, change_seq, op, schema_name, table_name, key, before, after) FROM STDIN"


_CUT_OFF = """(
  SELECT * FROM (
    SELECT l.*, {xmin} AS penstock_xmin, penstock_at, penstock_inserts, bool_or(
      {event_type} = '4' OR ({event_type} IN ('1', '5', '7')) <> penstock_inserts
    ) OVER (PARTITION BY penstock_at ORDER BY {order}) AS penstock_ends
    FROM {log} l JOIN unnest(%s::int[], %s::text[], %s::text[], %s::boolean[])
      o (penstock_at, penstock_key, penstock_table, penstock_inserts)
      ON {table_key} = penstock_key AND (
        right(lower({table_name}), length(penstock_table) + 1) IN (penstock_table, '.' || penstock_table)
        OR {table_name} = penstock_table)
    WHERE {where}
  ) l
  WHERE NOT penstock_ends AND (penstock_inserts OR {record_id} = ANY (%s::{id_type}[])
    OR (penstock_at, penstock_xmin) IN (SELECT * FROM unnest(%s::int[], %s::bigint[]) w))
) l"""
"""Finds the rows beyond the edge of a poll that belong to open changes, as `edge.OpenChange` says it."""


_MAY_KEEP = """
WITH RECURSIVE parts AS (
  SELECT %s::regclass::oid AS relid UNION SELECT i.inhrelid FROM pg_inherits i JOIN parts p ON i.inhparent = p.relid
)
SELECT FROM parts JOIN pg_class c ON c.oid = relid
WHERE c.relhastriggers OR c.relhasrules OR c.relrowsecurity OR c.relkind NOT IN ('r', 'p') LIMIT 1"""
"""Finds a log that something of its own may keep as it is: a trigger, a rule or a policy, or what a view reads."""


def journal_schema(pipeline: str) -> str:
    """The schema of a pipeline's journal."""
    return f"penstock_{pipeline}_events"


@dataclass
class RowDigests:
    """Digests of the rows that a process has read last, by their record_ids, so that it need not read them again.

    Attributes:
        position: Where the journal was then; elsewhere they say nothing.
    """

    position: int | None = None
    by_id: dict[int, int] = field(default_factory=dict)


class PostgresLogTransaction(LogTransaction):
    """An open transaction on one connection with the log and its journal."""

    def __init__(
        self,
        connection: Connection,
        settings: EventLogSettings,
        bound: BoundColumns,
        tables: Callable[[], Sequence[TableSchema]],
        pipeline: str,
        read_before: RowDigests,
    ) -> None:
        """Work inside an open transaction of `connection`.

        Args:
            read_before: What the transaction before this one has read; is brought up to date.
        """
        self._sql = connection
        self._settings = settings
        self._bound = bound
        self._tables = tables
        self._log = quote(settings.table.schema, settings.table.name)
        schema = journal_schema(pipeline)
        self._journal, self._events, self._changes = (quote(schema, name) for name in ("journal", "event", "change"))
        self._child_rows, self._failed = quote(schema, "child_row"), quote(schema, "failed")
        self._position: int | None = None
        self._classes: Classes | None = None
        # The record_ids that several rows of this transaction's poll have.
        self._told_shared: set[int] = set()
        self._read_before = read_before
        # The digest of each row that this transaction has read, by its record_id.
        self._digests: dict[int, int] = {}

    def position(self) -> Scn:
        """Return the position of the last event that was ever kept."""
        if self._position is None:
            row = self._sql.execute(f"SELECT position FROM {self._journal}").fetchone()
            assert row is not None
            self._position = int(row[0])
        return Scn(self._position)

    def move(self, position: Scn) -> None:
        """Leave out the positions up to this one."""
        if position > self.position():
            self._position = position
            self._sql.execute(f"UPDATE {self._journal} SET position = %s", [position])

    def classes(self) -> Classes:
        """Return the classes that the log may name, as they were when this transaction asked first."""
        if self._classes is None:
            settings = self._settings
            self._classes = Classes(
                self._tables(), schema=settings.schema, keys=settings.keys, syntax=settings.time_syntax
            )
        return self._classes

    def window(self, now: datetime | None, limit: int | None = None) -> Sequence[LogRow]:
        """Return the rows that are due, in order: as many as a poll takes, and the rest of the changes it would cut."""
        limit = self._settings.query_limit if limit is None else limit
        where, values = self._due(now)
        rows = self._rows(f"{self._log} l", where, values, limit)
        if limit and len(rows) == limit:
            rows += self._cut_off(rows, where, values)
        if shared := self._shared(row.record_id for row in rows):
            self._told_shared = shared
            rows = [row._replace(is_alone=False) if row.record_id in shared else row for row in rows]
        return rows

    def _shared(self, record_ids: Iterable[int]) -> set[int]:
        """Return those of the record_ids that several new rows have, where no index keeps them from it."""
        b = self._bound
        wanted = [] if b.is_unique else list(record_ids)
        if not wanted:
            return set()
        found = self._sql.execute(
            f"SELECT {b['record_id']}::bigint FROM {self._log} WHERE {self._is_new}"
            f" AND {b['record_id']} = ANY (%s::{b.types['record_id']}[]) GROUP BY 1 HAVING count(*) > 1",
            [wanted],
        )
        return {record_id for (record_id,) in found}

    def _rows(
        self, of: str, where: str, values: Sequence[object], limit: int = 0, *, xmin: str = "l.xmin::text::bigint"
    ) -> list[LogRow]:
        """Return rows in order, at most so many; 0 is all of them."""
        b = self._bound
        texts = ", ".join(
            b.text(name) for name in ("event_type", "table_name", "table_key", "column_name", "old_value", "new_value")
        )
        rows = self._sql.execute(
            f"SELECT {b['record_id']}::bigint, {b.text('status')}, {b['event_time']} IS NOT NULL,"
            f" CASE WHEN {self._is_plain_time} THEN {_epoch_us(b['event_time'])} ELSE 0 END, {b.digest}, {texts},"
            f" {xmin if b.has_xmin else 'NULL::bigint'} FROM {of}"
            f" WHERE {where} ORDER BY {self._order}{f' LIMIT {limit}' if limit else ''}",
            values,
        )
        found = []
        for record_id, status, has_time, at_us, digest, event_type, *others in rows:
            if status.rstrip(" ") == "N":
                found.append(LogRow(record_id, event_type, has_time, at_us, *others))
                self._digests[record_id] = digest
        return found

    def _cut_off(self, rows: Sequence[LogRow], where: str, values: Sequence[object]) -> list[LogRow]:
        """Return the rows beyond the last of these that belong to their changes, in order."""
        b = self._bound
        where = (
            f"{where} AND ({self._order}) > (SELECT {self._order} FROM {self._log} WHERE {b['record_id']} = %s LIMIT 1)"
        )
        beyond = [*values, rows[-1].record_id]
        keys = self._keys_beyond({row.table_key for row in rows}, where, beyond)
        if not keys:
            return []
        edge = Edge([row for row in rows if row.table_key in keys], rows[-1], self.classes())
        changes = edge.open
        if not changes:
            return []
        where, beyond = f"{where} AND {b['record_id']} <= %s", [*beyond, max(keys.values())]
        following = edge.following(self._rows(f"{self._log} l", where, beyond, edge.widest))
        named = [(at, one.key, name, one.is_insert) for at, one in enumerate(changes) for name in one.table_names]
        written = [(at, xmin) for at, one in enumerate(changes) for xmin in one.xmins]
        of = _CUT_OFF.format(
            log=self._log,
            where=where,
            order=self._order,
            id_type=b.types["record_id"],
            xmin="l.xmin::text::bigint" if b.has_xmin else "NULL::bigint",
            record_id=b["record_id"],
            **{name: b.text(name, "l.") for name in ("event_type", "table_name", "table_key")},
        )
        arrays = [list(of_one) for of_one in (*zip(*named, strict=True), *zip(*written, strict=True))]
        found = self._rows(of, "true", [*arrays[:4], *beyond, following, *arrays[4:]], xmin="l.penstock_xmin")
        # One that is found by two spellings of its table's name.
        return list({row.record_id: row for row in found}.values())

    def _keys_beyond(self, keys: Iterable[str | None], where: str, values: Sequence[object]) -> dict[str | None, int]:
        """Return those keys that some row beyond the edge has, too, with the highest record_id of such a row.

        All that waits beyond is read for that, so it is asked for in a way that costs next to nothing a row.
        """
        key = f'{self._bound.text("table_key")} COLLATE "C"'
        found = self._sql.execute(
            f"SELECT {key}, max({self._bound['record_id']})::bigint FROM {self._log}"
            f" WHERE {where} AND {key} = ANY (%s::text[]) GROUP BY 1",
            [*values, [one for one in keys if one is not None]],
        )
        return dict(found.fetchall())

    @property
    def _order(self) -> str:
        b = self._bound
        return b["record_id"] if not self._settings.future_events else f"{b['event_time']}, {b['record_id']}"

    def count_due(self) -> tuple[int, int | None]:
        """Return how many rows are due, and when the oldest of them was logged, microseconds since 1970 in UTC."""
        where, values = self._due(None)
        oldest = f"min({self._bound['event_time']}) FILTER (WHERE {self._is_plain_time})"
        row = self._sql.execute(
            f"SELECT count(*), {_epoch_us(oldest)} FROM {self._log} WHERE {where}", values
        ).fetchone()
        assert row is not None
        return row[0], row[1]

    def current(self, of: DatabaseClass, asked: Wanted) -> Mapping[Object, Current]:
        """Return what a table holds now of the objects that are there, or why that cannot be read."""
        return read_current(self._sql, of, asked)

    def keep(self, events: Sequence[JournalEvent]) -> None:
        """Add events to the journal, with the positions that follow."""
        first = self.position() + 1
        lines_of_events = (
            _event_line(position, event, [self._digests.get(one) for one in event.record_ids])
            for position, event in enumerate(events, first)
        )
        self._copy(_COPY_EVENTS.format(self._events), lines_of_events)
        # A child table has no primary key, so these are all.
        keys = {
            name: of.table.primary_key.columns
            for name, of in self.classes().by_name.items()
            if of.table.primary_key is not None
        }
        lines = (
            _change_line(position, change, keys)
            for position, event in enumerate(events, first)
            for change in event.changes
        )
        self._copy(_COPY_CHANGES.format(self._changes), lines)
        self.move(Scn(first + len(events) - 1))
        self._read_before.position, self._read_before.by_id = self.position(), self._digests

    def _copy(self, statement: str, lines: Iterator[str]) -> None:
        with self._sql.cursor() as cursor, cursor.copy(statement) as copy:
            while some := "".join(islice(lines, _LINES)):
                copy.write(some)

    def child_rows(self, of: Iterable[ChildRows]) -> dict[ChildRows, list[str]]:
        """Return the rows of child tables that events have told of so far, by their values, as canonical text."""
        found: dict[ChildRows, list[str]] = {one: [] for one in of}
        row = self._sql.execute("SELECT to_regclass(%s) IS NOT NULL", [self._child_rows]).fetchone()
        if row != (True,):
            # Who only looks at the log may do so before there is a journal, which has told of nothing.
            return found
        by_name = {(one.table.schema, one.table.name, _parent(one)): one for one in found}
        rows = self._sql.execute(
            f"SELECT schema_name, table_name, parent, value FROM {self._child_rows}"
            " JOIN unnest(%s::text[], %s::text[], %s::text[]) w (schema_name, table_name, parent)"
            " USING (schema_name, table_name, parent)",
            _columns_of(found),
        )
        for schema, table, parent, value in rows:
            found[by_name[schema, table, parent]].append(value)
        return found

    def keep_child_rows(self, rows: Mapping[ChildRows, Sequence[str]]) -> None:
        """Write down the rows that these are now."""
        self._sql.execute(
            f"DELETE FROM {self._child_rows} r USING unnest(%s::text[], %s::text[], %s::text[]) w (a, b, c)"
            " WHERE r.schema_name = w.a AND r.table_name = w.b AND r.parent = w.c",
            _columns_of(rows),
        )
        lines = (
            "\t".join(map(_cell, (one.table.schema, one.table.name, _parent(one), value))) + "\n"
            for one, values in rows.items()
            for value in values
        )
        self._copy(f"COPY {self._child_rows} (schema_name, table_name, parent, value) FROM STDIN", lines)

    def pending(self, upto: Scn | None = None) -> Sequence[Pending]:
        """Return the journal's events in order, those up to a position."""
        rows = self._sql.execute(
            f"SELECT position, record_ids, element FROM {self._events}"
            " WHERE %(upto)s::bigint IS NULL OR position <= %(upto)s::bigint ORDER BY position",
            {"upto": upto},
        )
        return [Pending(Scn(position), record_ids, element) for position, record_ids, element in rows]

    def settle(self, outcomes: Mapping[RowOutcome, Sequence[int]]) -> None:
        """Write the outcomes of rows by their record_ids, or delete the rows where the settings say so.

        A row that is not as it was read stays new, and is read by the next poll: it was altered, or is another one
        that has its record_id since the log was emptied and its numbers began again.

        Raises:
            OperatorError: Beside a row that was read there is a new one with its record_id. Or the log keeps a row new.
        """
        b, settings = self._bound, self._settings
        if late := self._shared(one for ids in outcomes.values() for one in ids) - self._told_shared:
            numbers = ", ".join(map(str, sorted(late)[:_MOST_NAMED])) + (", ..." if len(late) > _MOST_NAMED else "")
            raise OperatorError(
                f"new rows have the record_id of others that were read, and would get their status unread: {numbers}",
                where=f"event log {self._settings.table}",
                do="give them another record_id, and the column a unique index",
            )
        gone: list[int] = []
        written = 0
        for outcome, record_ids in outcomes.items():
            is_failed = outcome in (RowOutcome.ERROR, RowOutcome.FATAL)
            if settings.delete_processed and not (settings.keep_failed_rows and is_failed):
                gone += record_ids
            elif record_ids:
                # An operator may have parked a row meanwhile.
                sql = f"UPDATE {self._log} SET {b['status']} = %s FROM {self._rows_read} AND {self._is_new}"
                written += self._sql.execute(sql, [outcome.value, *self._as_read(record_ids)]).rowcount
        if gone:
            sql = f"DELETE FROM {self._log} USING {self._rows_read} AND {self._is_new}"
            written += self._sql.execute(sql, self._as_read(gone)).rowcount
        settled = [one for ids in outcomes.values() for one in ids]
        self._refuse_kept(settled)
        if written < len(settled):
            self._tell_unlike(settled)

    def _refuse_kept(self, record_ids: Sequence[int]) -> None:
        """Make sure that no row is new as it was read: each poll would read it again, and tell of it again.

        Where nothing of the log's own runs when a row is updated, all rows are as they were written.
        """
        if not record_ids or self._sql.execute(_MAY_KEEP, [self._log]).fetchone() is None:
            return
        id_ = self._bound["record_id"]
        rows = self._sql.execute(
            f"SELECT {id_}::bigint FROM {self._log}, {self._rows_read} AND {self._is_new} ORDER BY 1",
            self._as_read(record_ids),
        ).fetchall()
        if rows:
            shown = ", ".join(str(one) for (one,) in rows[:_MOST_NAMED]) + (", ..." if len(rows) > _MOST_NAMED else "")
            raise OperatorError(
                f"{count(len(rows), 'row')} of the event log, record_id {shown}, stayed N when another status was"
                " written, and every poll would read them again: a trigger, a rule or a row policy of the log keeps it",
                where=f"event log {self._settings.table}",
                do="have it let updates of the status through for this user",
            )

    @property
    def _rows_read(self) -> str:
        """SQL for rows that are as they were read, behind FROM; `_as_read` makes its parameters."""
        b = self._bound
        return (
            f"unnest(%s::{b.types['record_id']}[], %s::bigint[]) penstock (penstock_id, penstock_digest)"
            f" WHERE {b['record_id']} = penstock_id AND coalesce(penstock_digest = {b.digest}, true)"
        )

    def _as_read(self, record_ids: Sequence[int]) -> list[object]:
        """The record_ids and the digests of rows; NULL for one that several rows share, or that was read long ago."""
        if not self._digests and self._read_before.position == self.position():
            self._digests = self._read_before.by_id
        if not self._digests.keys() >= set(record_ids):
            # Another process has read them.
            rows = self._sql.execute(
                f"SELECT r.id, r.digest FROM {self._events} e, unnest(e.record_ids, e.digests) r (id, digest)"
                " WHERE r.digest IS NOT NULL"
            )
            self._digests = dict(rows.fetchall()) | self._digests
        digests = [None if one in self._told_shared else self._digests.get(one) for one in record_ids]
        return [_array(record_ids), _array(digests)]

    def _tell_unlike(self, record_ids: Sequence[int]) -> None:
        b = self._bound
        rows = self._sql.execute(
            f"SELECT {b['record_id']}::bigint FROM {self._log}, unnest(%s::{b.types['record_id']}[], %s::bigint[])"
            f" penstock (penstock_id, penstock_digest) WHERE {b['record_id']} = penstock_id AND {self._is_new}"
            f" AND penstock_digest <> {b.digest} ORDER BY 1",
            self._as_read(record_ids),
        ).fetchall()
        if rows:
            shown = ", ".join(str(one) for (one,) in rows[:_MOST_NAMED]) + (", ..." if len(rows) > _MOST_NAMED else "")
            text = (
                f"{count(len(rows), 'row')} of the event log, record_id {shown}, {'is' if len(rows) == 1 else 'are'}"
                " not what was read by that number: altered since, or of a log whose numbers began again; the"
                " next poll reads what is there now"
            )
            facts = {"rows": len(rows), "record_ids": [one for (one,) in rows[:_MOST_NAMED]]}
            tell(Event.NOTE, f"{text} (event log {self._settings.table})", facts, level=logging.WARNING)

    def settled(self) -> Scn:
        """Return the position of the last event that was taken out of the journal for its reader."""
        # A journal of an earlier version does not say.
        row = self._sql.execute(
            f"SELECT coalesce((to_jsonb(j) ->> 'settled')::bigint, 0) FROM {self._journal} j"
        ).fetchone()
        assert row is not None
        return Scn(row[0])

    def forget(self, upto: Scn | None = None) -> None:
        """Take the events up to a position out of the journal; all of them if None."""
        self._sql.execute(
            f"UPDATE {self._journal} SET settled = e.last FROM (SELECT max(position) AS last FROM {self._events}"
            " WHERE %(upto)s::bigint IS NULL OR position <= %(upto)s::bigint) e WHERE e.last IS NOT NULL",
            {"upto": upto},
        )
        for table in (self._changes, self._events):
            self._sql.execute(
                f"DELETE FROM {table} WHERE %(upto)s::bigint IS NULL OR position <= %(upto)s::bigint", {"upto": upto}
            )

    def keep_failed(self, events: Iterable[Pending]) -> None:
        """Remember which rows are behind events that are in the error queue."""
        settings = self._settings
        if not settings.delete_processed or settings.keep_failed_rows:
            self._sql.execute(
                f"INSERT INTO {self._failed} (position, record_ids, digests)"
                f" SELECT position, record_ids, digests FROM {self._events} WHERE position = ANY (%s::bigint[])",
                [[int(event.position) for event in events]],
            )

    def failed(self) -> Mapping[Scn, Sequence[int]]:
        """Return the rows behind each event that is remembered as failed, by its position."""
        rows = self._sql.execute(f"SELECT position, record_ids FROM {self._failed} ORDER BY position").fetchall()
        return {Scn(position): record_ids for position, record_ids in rows}

    def mend(self, gone: Iterable[Scn], applied: Sequence[int]) -> None:
        """Forget failed events that are in the error queue no more, and give the rows of those applied their status."""
        b = self._bound
        rows = self._sql.execute(
            f"SELECT r.id, r.digest FROM {self._failed} f, unnest(f.record_ids, f.digests) r (id, digest)"
            " WHERE f.position = ANY (%s::bigint[]) AND r.id = ANY (%s::bigint[])",
            [list(gone), list(applied)],
        ).fetchall()
        read = [_array(record_id for record_id, _ in rows), _array(digest for _, digest in rows)]
        where = f"{self._rows_read} AND {b.is_status('E')}"
        if self._settings.delete_processed:
            self._sql.execute(f"DELETE FROM {self._log} USING {where}", read)
        else:
            self._sql.execute(f"UPDATE {self._log} SET {b['status']} = 'S' FROM {where}", read)
        self._sql.execute(f"DELETE FROM {self._failed} WHERE position = ANY (%s::bigint[])", [list(gone)])

    def count_lost(self) -> int:
        """Return how many rows are new, and can never be read as no status could be written to them."""
        lost = f"SELECT count(*) FROM {self._log} WHERE {self._is_new} AND ({self._bound.has_id}) IS NOT TRUE"
        row = self._sql.execute(lost).fetchone()
        assert row is not None
        return int(row[0])

    def count_own(self) -> int:
        """Return how many new rows are not read because the driver's own user wrote them."""
        user = self._settings.suppressed_user
        if user is None:
            return 0
        own = f"SELECT count(*) FROM {self._log} WHERE {self._is_new} AND {self._writer} = %s"
        row = self._sql.execute(own, [user]).fetchone()
        assert row is not None
        return int(row[0])

    @property
    def _writer(self) -> str:
        return f"rtrim({self._bound.text('perpetrator')}, ' ')"

    @property
    def _is_plain_time(self) -> str:
        """SQL for whether a row's time is one that programs can hold; infinity is none."""
        time = self._bound["event_time"]
        return f"{time} >= '0001-01-02' AND {time} < '9999-12-31'"

    @property
    def _is_new(self) -> str:
        return self._bound.is_status("N")

    def _due(self, now: datetime | None) -> tuple[str, list[object]]:
        """Which rows a poll may take, as SQL and its parameters."""
        b, settings = self._bound, self._settings
        conditions, values = [self._is_new, self._bound.has_id], list[object]()
        if settings.suppressed_user is not None:
            conditions.append(f"({b['perpetrator']} IS NULL OR {self._writer} <> %s)")
            values.append(settings.suppressed_user)
        if settings.future_events:
            time, type_ = b["event_time"], b.types["event_time"]
            # In UTC, as the default of the column writes it.
            clock = "statement_timestamp() AT TIME ZONE 'UTC'" if now is None else "%s::timestamp"
            conditions.append(f"({time} IS NULL OR {time} <= ({clock})::{type_})")
            values += [] if now is None else [now]
        return " AND ".join(conditions), values


def _epoch_us(time: str) -> str:
    """SQL for a time as microseconds since 1970."""
    return f"(extract(epoch FROM {time}) * 1000000)::bigint"


_MOST_NAMED = 5

_LINES = 1_000
"""So many lines go to the server at a time."""

_ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def _array(numbers: Iterable[int | None]) -> str:
    """An array's text, which takes a tenth of the time that a parameter for each number does."""
    return f"{{{','.join(['NULL' if one is None else str(one) for one in numbers])}}}"


def _event_line(position: int, event: JournalEvent, digests: Iterable[int | None]) -> str:
    size = len(event.element or "")
    for change in event.changes:
        for image in (change.before, change.after):
            size += 0 if image is None else sum(len(name) + len(value or "") for name, value in image.items())
    sizes = f"{len(event.changes) or 1}\t{size}\t{event.logged_at_us}"
    return f"{position}\t{_array(event.record_ids)}\t{_array(digests)}\t{sizes}\t{_cell(event.element)}\n"


def _change_line(position: int, change: Change, keys: Mapping[TableName, Sequence[str]]) -> str:
    shown = (key_of(change, keys), change.before, change.after)
    images = (None if image is None else encode_image(image) for image in shown)
    cells = (change.op.value, change.table.schema, change.table.name, *images)
    return "\t".join((str(position), str(change.change_seq), *map(_cell, cells))) + "\n"


def _columns_of(rows: Iterable[ChildRows]) -> list[list[str]]:
    """Schemas, tables and parents, as arrays."""
    named = [(one.table.schema, one.table.name, _parent(one)) for one in rows]
    return [[row[at] for row in named] for at in range(3)]


def _parent(rows: ChildRows) -> str:
    return json.dumps(rows.key, ensure_ascii=False)


def _cell(text: str | None) -> str:
    """A text as COPY takes it."""
    return "\\N" if text is None else text.translate(_ESCAPED)
