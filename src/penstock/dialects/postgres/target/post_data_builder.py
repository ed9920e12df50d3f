"""Makes the post-data objects that a copy lacks while changes are applied beside it, and has its sequences set."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress

import psycopg

from penstock.change import TableName
from penstock.database import CatalogDifference, MissingObject, SequenceSetting, SequenceValue
from penstock.dialects.postgres.connection import WITHOUT_VIEWS, Connection, connect, label, quote, speaking
from penstock.dialects.postgres.connector import LOCK_WAIT
from penstock.dialects.postgres.errors import translate
from penstock.dialects.postgres.ownership import PINNED
from penstock.dialects.postgres.post_data import PostData, PostDataKind, PostDataObject, When
from penstock.dialects.postgres.target import ledger_entries
from penstock.dialects.postgres.target.differing import invalid_indexes, remaining
from penstock.dialects.postgres.target.post_data import left, obstacles, read_state, to_build
from penstock.dialects.postgres.target.sequences import sequences_to_set, set_sequences
from penstock.dialects.sessions import PostDataBuilder
from penstock.errors import OperatorError

_ATTEMPTS = 20
_PAUSE_S = 0.5
"""How often to come back for a table that others hold, and how long to let them work in between."""

_LATE = (When.COPIED,)
_LAST = (When.SETUP, When.COPIED, When.CUTOVER)


class PostgresPostDataBuilder(PostDataBuilder):
    """Makes what `PostData` describes. `stop` may be called by another thread, and nothing else."""

    def __init__(self, url: str, process: str, post_data: PostData | None) -> None:
        """Work in the database at `url`; without `post_data` there is nothing to be done."""
        self._url = url
        self._process = process
        self._post_data = post_data or PostData((), (), ())
        self._session: Connection | None = None
        self._is_stopped = threading.Event()
        self._refused: dict[PostDataObject, str] = {}

    def lacks(self) -> list[MissingObject]:
        """Return what the copy lacks, and why it goes on to lack what is not made."""
        with speaking("look for what the copy lacks", self._url):
            connection = self._sql()
            state = read_state(connection, self._post_data)
            made = ledger_entries.made(connection, self._process)
            why_not = obstacles(connection, [piece for piece in self._post_data.pieces if not state.has(piece)])
            return left(self._post_data, state, why_not, made)

    def differences(self) -> list[CatalogDifference]:
        """Return in what the copy is not what the source is, but for what is about to be made.

        What was refused to `build` is not about to be made.

        Raises:
            OperatorError: An index of the copy is not valid, and is not about to be built anew.
        """
        with speaking("compare what tables are made of", self._url):
            connection = self._sql()
            state = read_state(connection, self._post_data)
            made = ledger_entries.made(connection, self._process)
            lack = [piece for piece in self._post_data.pieces if not state.has(piece)]
            building = {piece.root for piece in lack if piece.kind is PostDataKind.INDEX}
            source = self._post_data.objects
            if source is None:
                return []
            for _, fault in invalid_indexes(source, state.objects, building, where=label(self._url)):
                raise fault
            why_not = obstacles(connection, lack)
            why_not |= {piece: self._refused[piece] for piece in lack if piece in self._refused}
            lacks = left(self._post_data, state, why_not, made)
            return remaining(source, state.objects, lacks, made)

    def build(self, copied: Collection[TableName], *, is_last: bool = False) -> Iterator[MissingObject]:
        """Make what tables lack, one after another; yields what was made, and with a reason what was refused.

        An index is built without keeping anybody from writing. What a run that was killed has left half-built is
        dropped, and built anew.

        Args:
            copied: The tables that hold their rows. Others get nothing.
            is_last: The application is about to come: also what `setup` would make, and what rows may break.
        """
        with speaking("make what the copy lacks", self._url):
            connection = self._sql()
            state = read_state(connection, self._post_data)
            made = ledger_entries.made(connection, self._process) & set(copied)
            wanted = to_build(self._post_data, state, made, _LAST if is_last else _LATE)
            why_not = obstacles(connection, wanted)
            lost = {_relation(f) for f in why_not if f.kind in (PostDataKind.SEQUENCE, PostDataKind.INDEX)}
            for item in wanted:
                if self._is_stopped.is_set():
                    return
                if item in why_not:
                    continue
                if item.other in lost and item.kind is not PostDataKind.SEQUENCE:
                    yield MissingObject(item.root, item.summary, f"{item.other} is left out")
                    continue
                refusal = self._make(connection, item)
                if refusal:
                    self._refused[item] = refusal
                if refusal and item.kind in (PostDataKind.SEQUENCE, PostDataKind.INDEX):
                    # Whatever draws from it, or is a part of it, has nothing to lean on.
                    lost.add(_relation(item))
                yield MissingObject(item.root, item.summary, refusal)

    def sequences_to_set(self, values: Mapping[TableName, SequenceValue]) -> list[SequenceSetting]:
        """Say what sequences have to be set to, of those that may be read; see `sequences.sequences_to_set`."""
        with speaking("look at sequences", self._url):
            settings = sequences_to_set(self._sql(), self._post_data.links, values)
            return [setting for _, setting in settings if setting is not None]

    def set_sequences(self, values: Mapping[TableName, SequenceValue]) -> list[SequenceSetting]:
        """Set sequences so; returns how each of them stood and stands.

        Raises:
            OperatorError: The user may not set one.
        """
        with speaking("move sequences", self._url):
            settings = sequences_to_set(self._sql(), self._post_data.links, values)
            set_sequences(self._sql(), settings, where=label(self._url))
            return [setting for _, setting in settings if setting is not None]

    def stop(self) -> None:
        """Have `build` end soon: the server is told to give up what it is building."""
        self._is_stopped.set()
        session = self._session
        if session is not None:
            # It may have ended by itself by now, or be out of reach: then there is nothing to give up.
            with suppress(psycopg.Error):
                session.cancel_safe(timeout=5)

    def close(self) -> None:
        """Close the session; a later call opens another one."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def _make(self, connection: Connection, item: PostDataObject) -> str:
        """Make one; returns why the target refuses it, if it does."""
        try:
            if item.kind is not PostDataKind.INDEX:
                self._take(connection, item.sql)
            else:
                self._build(connection, item)
        except psycopg.errors.QueryCanceled:
            # The caller gives up; `speaking` says so.
            raise
        except psycopg.Error as exc:
            error = translate(exc, doing=f"make {item.summary}", where=label(self._url))
            if not isinstance(error, OperatorError):
                raise error from exc
            return error.what
        return ""

    def _build(self, connection: Connection, item: PostDataObject) -> None:
        index = TableName(item.table.schema, item.name)
        name, table = quote(index.schema, index.name), quote(item.table.schema, item.table.name)
        cursor = psycopg.RawCursor(connection)
        with _alone(connection, index):
            row = cursor.execute(
                "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1) AND indrelid = $2::regclass",
                [name, table],
            ).fetchone()
            if row is not None and not row[0] and "CONCURRENTLY" in item.sql:
                cursor.execute(f"DROP INDEX CONCURRENTLY {name}")
                row = None
            if row is None and "CONCURRENTLY" in item.sql:
                cursor.execute(item.sql)
            elif row is None:
                self._take(connection, item.sql)
            if item.other is not None:
                of = quote(item.other.schema, item.other.name)
                self._take(connection, f"ALTER INDEX {of} ATTACH PARTITION {name}")

    def _take(self, connection: Connection, sql: str) -> None:
        """Run what locks a table for a moment; nobody waits long behind it while another session holds the table."""
        for attempt in range(_ATTEMPTS):
            try:
                with connection.transaction():
                    connection.execute(f"{PINNED}; SET LOCAL lock_timeout = '{LOCK_WAIT}'")
                    psycopg.RawCursor(connection).execute(sql)
            except psycopg.errors.LockNotAvailable:
                if attempt + 1 == _ATTEMPTS or self._is_stopped.wait(_PAUSE_S):
                    raise
            else:
                return

    def _sql(self) -> Connection:
        if self._session is None or self._session.closed:
            self._session = connect(self._url, f"penstock {self._process} post-data")
            self._session.execute(WITHOUT_VIEWS)
        return self._session


def _relation(item: PostDataObject) -> TableName:
    """The name of the sequence or index that a post-data object is."""
    if item.kind is PostDataKind.SEQUENCE and item.other is not None:
        return item.other
    return TableName(item.table.schema, item.name)


@contextmanager
def _alone(connection: Connection, index: TableName) -> Iterator[None]:
    """Keep other sessions of ours from building the same index beside."""
    key = f"penstock fitting {index}"
    psycopg.RawCursor(connection).execute("SELECT pg_advisory_lock(hashtext('penstock'), hashtext($1))", [key])
    try:
        yield
    finally:
        if not connection.closed:
            psycopg.RawCursor(connection).execute(
                "SELECT pg_advisory_unlock(hashtext('penstock'), hashtext($1))", [key]
            )
