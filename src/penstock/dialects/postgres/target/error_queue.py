"""The error queue in a PostgreSQL target."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

from psycopg.rows import DictRow, dict_row

from penstock.apply.dependency_keys import fingerprint
from penstock.apply.error_queue import (
    EVERY_ENTRY,
    Actor,
    EntryAction,
    EntryHold,
    EntryOutcome,
    EntryPlace,
    EntrySelection,
    ErrorEntry,
    ErrorQueue,
    NoEntryError,
    Note,
    PastAction,
    on_hold_error,
)
from penstock.apply.held_transactions import as_batches, blocked_keys_of
from penstock.apply.ledger import Failure
from penstock.apply.target import TargetCatalog
from penstock.change import Change, Image, Op, TableName, Transaction
from penstock.dialects.postgres.connection import Connection, connect, label, speaking
from penstock.dialects.postgres.target.blocked_keys import WAITS_FOR, note_marked, replace_blocked_keys, unmarked
from penstock.dialects.postgres.target.error_history import read_actions, read_deleted, write_action
from penstock.dialects.postgres.target.retry_session import PostgresRetrySession
from penstock.external_values import ValueStore
from penstock.origins import DEFAULT_TAG
from penstock.values import encode_image, with_external

_ENTRY = f"""
SELECT e.id, p.source, e.txn_id, e.commit_scn, e.committed_at, e.message_number, e.message_count, e.error_number,
  e.error_code, e.error_message, e.found, c.schema_name,
  -- A document that cannot be read is of no table.
  CASE WHEN c.op = 'gap' AND c.before ->> 'document' IS NOT NULL THEN NULL ELSE c.table_name END AS table_name,
  c.op, e.created_at, e.recipient, e.is_held, e.on_hold_at, e.on_hold_by, e.on_hold_note,
  CASE WHEN e.is_held THEN {WAITS_FOR} END AS behind
FROM penstock.error e JOIN penstock.process p ON p.name = e.process LEFT JOIN penstock.error_change c
  ON c.process = e.process AND c.error_id = e.id AND c.message_number = e.message_number
WHERE e.process = %s
"""

_TABLES = """
SELECT DISTINCT schema_name, table_name FROM penstock.error_change WHERE process = %s
"""


def _entry(process: str, row: DictRow) -> ErrorEntry:
    table = TableName(row["schema_name"], row["table_name"]) if row["table_name"] else None
    behind = None if row["behind"] is None else f"{process}.{row['behind']}"
    at, by, note = row["on_hold_at"], row["on_hold_by"], row["on_hold_note"]
    own = {"id", "schema_name", "table_name", "behind", "on_hold_at", "on_hold_by", "on_hold_note"}
    return ErrorEntry(
        id=f"{process}.{row['id']}",
        table=table,
        behind=behind,
        on_hold=None if at is None else EntryHold(at, by or "", note or ""),
        **{name: value for name, value in row.items() if name not in own},
    )


def entries_behind(connection: Connection, process: str, number: int, most: int) -> list[tuple[int, ErrorEntry]]:
    """Return the entries of a process that failed after one, with their numbers, the oldest first."""
    rows = connection.cursor(row_factory=dict_row).execute(
        _ENTRY + " AND e.id > %s AND NOT e.is_held ORDER BY e.id LIMIT %s", [process, number, most]
    )
    return [(row["id"], _entry(process, row)) for row in rows]


def note_held(connection: Connection, process: str, table: TableName) -> None:
    """Write down, inside an open transaction, that a table holds what each transaction in the queue did to it.

    Rows that have no key would be there twice after a retry, and nothing would tell.
    """
    connection.execute(
        "INSERT INTO penstock.held (process, error_id, schema_name, table_name)"
        " SELECT process, id, %s, %s FROM penstock.error WHERE process = %s ON CONFLICT DO NOTHING",
        [table.schema, table.name, process],
    )


class PostgresErrorQueue(ErrorQueue):
    """The entries of one process."""

    def __init__(
        self,
        url: str,
        process: str,
        tag: str | None = DEFAULT_TAG,
        *,
        actor: Actor | None = None,
        values: ValueStore | None = None,
    ) -> None:
        """Open the entries of a process in the database at `url`.

        Args:
            tag: The origin mark that what is tried again carries.
            actor: Who is written down for what is done; the user of this program if it is not said.
            values: Where values are that are too large for their changes.
        """
        self._values = values
        self._url = url
        self._tag = tag
        self._process = process
        self._actor = actor or Actor.here()
        self._connection: Connection | None = None

    def entries(self, selection: EntrySelection = EVERY_ENTRY) -> Sequence[ErrorEntry]:
        """Return the entries that are meant, in commit order. A page of many costs what its own entries cost."""
        condition, values = _condition(selection)
        # The last ones before a place are the first ones of the opposite order.
        is_reversed = selection.before is not None
        order = "e.commit_scn DESC, e.id DESC" if is_reversed else "e.commit_scn, e.id"
        with speaking("read the error queue", self._url):
            rows = self._rows().execute(
                f"{_ENTRY}{condition} ORDER BY {order} LIMIT %s", [self._process, *values, selection.most]
            )
            found = [_entry(self._process, row) for row in rows]
        return found[::-1] if is_reversed else found

    def count(self, selection: EntrySelection = EVERY_ENTRY) -> int:
        """Return how many entries are meant."""
        condition, values = _condition(selection)
        with speaking("read the error queue", self._url):
            row = (
                self._sql()
                .execute(
                    f"SELECT count(*) FROM penstock.error e WHERE e.process = %s{condition}", [self._process, *values]
                )
                .fetchone()
            )
        assert row is not None
        return int(row[0])

    def tables(self) -> Collection[TableName]:
        """Return the tables that the entries change."""
        with speaking("read the error queue", self._url):
            rows = self._sql().execute(_TABLES, [self._process])
            return {TableName(schema, name) for schema, name in rows}

    def count_by_table(self, root_of: Mapping[TableName, TableName]) -> Mapping[TableName, int]:
        """Return how many transactions hold changes of each table, or of its partitions."""
        pairs = list(root_of.items())
        with speaking("read the error queue", self._url):
            rows = self._sql().execute(
                "SELECT coalesce(r.root_schema, c.schema_name), coalesce(r.root_name, c.table_name),"
                " count(DISTINCT c.error_id) FROM penstock.error_change c"
                " LEFT JOIN unnest(%s::text[], %s::text[], %s::text[], %s::text[])"
                "   r (schema_name, table_name, root_schema, root_name) USING (schema_name, table_name)"
                " WHERE c.process = %s GROUP BY 1, 2",
                [
                    [table.schema for table, _ in pairs],
                    [table.name for table, _ in pairs],
                    [root.schema for _, root in pairs],
                    [root.name for _, root in pairs],
                    self._process,
                ],
            )
            return {TableName(schema, name): number for schema, name, number in rows}

    def find(self, entry_id: str) -> str:
        """Return an entry's id in full."""
        number = self._number(entry_id)
        with speaking("read the error queue", self._url):
            found = self._sql().execute(
                "SELECT FROM penstock.error WHERE process = %s AND id = %s", [self._process, number]
            )
        if found.rowcount == 0:
            raise self._unknown(entry_id)
        return f"{self._process}.{number}"

    def places(self, entry_ids: Collection[str]) -> Mapping[str, EntryPlace]:
        """Return where entries stand in commit order."""
        numbers = [self._number(entry_id) for entry_id in entry_ids]
        with speaking("read the error queue", self._url):
            rows = self._sql().execute(
                "SELECT commit_scn, id FROM penstock.error WHERE process = %s AND id = ANY (%s)",
                [self._process, numbers],
            )
            return {f"{self._process}.{number}": EntryPlace(scn, number) for scn, number in rows}

    def load(self, entry_id: str) -> tuple[ErrorEntry, Transaction]:
        """Return an entry and its changes."""
        number = self._number(entry_id)
        with speaking("read the error queue", self._url):
            # The changes first: as long as the entry is there afterwards, another session has not removed any of them.
            changes = (
                self._rows()
                .execute(
                    "SELECT * FROM penstock.error_change WHERE process = %s AND error_id = %s ORDER BY message_number",
                    [self._process, number],
                )
                .fetchall()
            )
            row = self._rows().execute(_ENTRY + " AND e.id = %s", [self._process, number]).fetchone()
            if row is None:
                raise self._unknown(entry_id)
            entry = _entry(self._process, row)
            committed = None if entry.committed_at is None else round(entry.committed_at.timestamp() * 1_000_000)
            return entry, Transaction(entry.commit_scn, entry.txn_id, committed, [_change(c) for c in changes])

    def delete(self, *entry_ids: str, skip_gone: bool = False) -> Sequence[str]:
        """Remove entries, all of them or none; nothing is applied."""

        def delete(entry: ErrorEntry) -> Note | None:
            if entry.on_hold is not None:
                if skip_gone:
                    return None
                raise on_hold_error([entry.id], where=label(self._url))
            number = entry.place.number
            self._sql().execute("DELETE FROM penstock.error WHERE process = %s AND id = %s", [self._process, number])
            return Note(entry, EntryAction.DELETE, EntryOutcome.DELETED)

        return self._act(entry_ids, delete, skip_gone=skip_gone)

    def hold(self, *entry_ids: str, note: str, skip_gone: bool = False) -> Sequence[str]:
        """Put entries on hold, all of them or none."""

        def hold(entry: ErrorEntry) -> Note | None:
            if entry.on_hold is not None and skip_gone:
                return None
            self._sql().execute(
                "UPDATE penstock.error SET on_hold_at = clock_timestamp(), on_hold_note = %s,"
                " on_hold_by = format('%%s (%%s on %%s)', session_user, %s::text, %s::text)"
                " WHERE process = %s AND id = %s",
                [note, self._actor.os_user, self._actor.host, self._process, entry.place.number],
            )
            return Note(entry, EntryAction.HOLD, EntryOutcome.ON_HOLD, note=note)

        return self._act(entry_ids, hold, skip_gone=skip_gone)

    def release(self, *entry_ids: str, skip_gone: bool = False) -> Sequence[str]:
        """End the hold of entries, all of them or none."""

        def release(entry: ErrorEntry) -> Note | None:
            if entry.on_hold is None:
                return None
            self._sql().execute(
                "UPDATE penstock.error SET on_hold_at = NULL, on_hold_by = NULL, on_hold_note = NULL"
                " WHERE process = %s AND id = %s",
                [self._process, entry.place.number],
            )
            return Note(entry, EntryAction.RELEASE, EntryOutcome.RELEASED)

        return self._act(entry_ids, release, skip_gone=skip_gone)

    def on_hold(self, entry_ids: Collection[str]) -> Collection[str]:
        """Return those of the entries that are on hold."""
        numbers = [self._number(entry_id) for entry_id in entry_ids]
        with speaking("read the error queue", self._url):
            rows = self._sql().execute(
                "SELECT id FROM penstock.error WHERE process = %s AND id = ANY (%s) AND on_hold_at IS NOT NULL",
                [self._process, numbers],
            )
            return {f"{self._process}.{number}" for (number,) in rows}

    def _act(
        self, entry_ids: Sequence[str], act: Callable[[ErrorEntry], Note | None], *, skip_gone: bool
    ) -> Sequence[str]:
        """Act on entries in one transaction; returns those of which `act` has something to write down."""
        named = {self._number(entry_id): entry_id for entry_id in entry_ids}
        done = []
        connection = self._sql()
        with speaking("write the error queue", self._url), connection.transaction():
            for number, entry_id in named.items():
                # Another session may be applying it: wait for what comes of that.
                found = (
                    self._rows().execute(_ENTRY + " AND e.id = %s FOR UPDATE OF e", [self._process, number]).fetchone()
                )
                if found is None:
                    if skip_gone:
                        continue
                    raise self._unknown(entry_id)
                note = act(_entry(self._process, found))
                if note is not None:
                    write_action(connection, self._process, self._actor, note)
                    done.append(note.entry.id)
        return done

    def note(self, *notes: Note) -> None:
        """Write down deeds that changed nothing."""
        connection = self._sql()
        with speaking("write the error queue", self._url), connection.transaction():
            for note in notes:
                write_action(connection, self._process, self._actor, note)

    def note_failure(self, note: Note, failure: Failure) -> None:
        """Write down that an entry failed again, and in the entry, why."""
        error = failure.error
        connection = self._sql()
        with speaking("write the error queue", self._url), connection.transaction():
            connection.execute(
                "UPDATE penstock.error SET message_number = %s, error_number = %s, error_code = %s,"
                " error_message = %s, found = %s, is_held = false WHERE process = %s AND id = %s",
                [
                    failure.message_number,
                    error.number,
                    error.code,
                    str(error),
                    None if error.found is None else encode_image(error.found, is_ascii=True),
                    self._process,
                    self._number(note.entry.id),
                ],
            )
            write_action(connection, self._process, self._actor, note)

    def mark(self, catalog: TargetCatalog) -> None:
        """See `ErrorQueue.mark`."""
        marked_by = fingerprint(catalog.tables, catalog.virtual)
        connection = self._sql()
        with speaking("mark the error queue", self._url):
            while True:
                with connection.transaction():
                    numbers = unmarked(connection, self._process, marked_by, _MARKED_AT_ONCE)
                    for number in numbers:
                        _, transaction = self.load(str(number))
                        marks = blocked_keys_of(as_batches(transaction), catalog)
                        replace_blocked_keys(connection, self._process, number, transaction.commit_scn, marks)
                    note_marked(connection, self._process, numbers, marked_by)
                if not numbers:
                    return

    def history(self, *, entry_id: str | None = None, most: int) -> Sequence[PastAction]:
        """Return the last deeds, of one entry or of all, the oldest of them first."""
        number = None if entry_id is None else self._number(entry_id)
        with speaking("read what was done with the error queue", self._url):
            return read_actions(self._sql(), self._process, number, most)

    def deleted(self, first: int, last: int) -> Set[int]:
        """Return the positions, from one to another, of transactions that were deleted from the queue."""
        with speaking("read what was done with the error queue", self._url):
            return read_deleted(self._sql(), self._process, first, last)

    @contextmanager
    def retry_session(self) -> Iterator[PostgresRetrySession]:
        """Open a session to apply entries through."""
        session = PostgresRetrySession(self._url, self._process, self._tag, self._actor, self._values)
        try:
            yield session
        finally:
            session.close()

    def _number(self, entry_id: str) -> int:
        process, _, number = entry_id.rpartition(".")
        if process not in ("", self._process) or not _NUMBER.fullmatch(number):
            raise self._unknown(entry_id)
        return int(number)

    def _unknown(self, entry_id: str) -> NoEntryError:
        return NoEntryError(
            f"no transaction {entry_id!r} in the error queue",
            where=label(self._url),
            do="`penstock errors list` names those that are there",
        )

    def _rows(self) -> Any:
        return self._sql().cursor(row_factory=dict_row)

    def _sql(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url, f"penstock {self._process} errors")
        return self._connection


def _condition(selection: EntrySelection) -> tuple[str, list[Any]]:
    """What selects entries `e`, as the end of a condition, and its values."""
    parts: list[tuple[str, list[Any]]] = []
    if selection.tables is not None:
        named = list(selection.tables)
        parts.append(
            (
                "EXISTS (SELECT FROM penstock.error_change t WHERE t.process = e.process AND t.error_id = e.id"
                " AND (t.schema_name, t.table_name) IN (SELECT * FROM unnest(%s::text[], %s::text[])))",
                [[table.schema for table in named], [table.name for table in named]],
            )
        )
    if selection.errors:
        errors = list(selection.errors)
        parts.append(("(e.error_number::text = ANY (%s) OR e.error_code = ANY (%s))", [errors, errors]))
    if selection.since is not None:
        parts.append(("e.created_at >= %s", [selection.since]))
    if selection.until is not None:
        parts.append(("e.created_at <= %s", [selection.until]))
    if selection.text:
        parts.append(("strpos(lower(e.error_message), lower(%s)) > 0", [selection.text]))
    if selection.on_hold is not None:
        parts.append((f"e.on_hold_at IS {'NOT ' if selection.on_hold else ''}NULL", []))
    for sign, place in ((">", selection.after), ("<", selection.before)):
        if place is not None:
            parts.append((f"(e.commit_scn, e.id) {sign} (%s, %s)", [place.commit_scn, place.number]))
    return "".join(f" AND {text}" for text, _ in parts), [value for _, values in parts for value in values]


_MARKED_AT_ONCE = 200

_NUMBER = re.compile("[0-9]{1,18}")


def _change(row: DictRow) -> Change:
    return Change(
        change_seq=row["change_seq"],
        op=Op(row["op"]),
        table=TableName(row["schema_name"], row["table_name"]),
        table_version=row["table_version"],
        before=_image(row["before"]),
        after=_image(row["after"]),
    )


def _image(told: Mapping[str, Any] | None) -> Image | None:
    return None if told is None else with_external(told)
