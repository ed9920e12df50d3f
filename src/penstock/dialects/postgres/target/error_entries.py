"""Entries of the error queue as they are written, inside the transaction of whoever puts them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.apply.blocked_keys import BlockedKeys
from penstock.apply.ddl import unfollowed
from penstock.apply.ledger import Failed
from penstock.apply.target import Unfollowed
from penstock.change import Change, Op, TableName, Transaction
from penstock.dialects.postgres.connection import Connection
from penstock.dialects.postgres.target.blocked_keys import write_blocked_keys
from penstock.position import Scn
from penstock.values import encode_image

HELD_MESSAGE = "waits for an earlier transaction in the error queue"


def put_errors(connection: Connection, process: str, failed: Sequence[Failed], marked_by: int | None) -> None:
    """Insert transactions with all their changes into the error queue.

    Args:
        marked_by: By which keys their marks were found, where they have any.
    """
    errors = [one.failure.error for one in failed]
    rows = connection.execute(
        "INSERT INTO penstock.error (process, txn_id, commit_scn, committed_at, message_number, message_count,"
        " error_number, error_code, error_message, found, marked_by)"
        " SELECT %s, e.txn_id, e.scn, to_timestamp(e.us / 1000000.0), e.message, e.messages, e.number, e.code, e.text,"
        " e.found::json, CASE WHEN e.is_marked THEN %s::bigint END FROM unnest(%s::text[], %s::bigint[], %s::bigint[],"
        " %s::int[], %s::int[], %s::int[], %s::text[], %s::text[], %s::text[], %s::boolean[]) WITH ORDINALITY"
        " e (txn_id, scn, us, message, messages, number, code, text, found, is_marked, place) ORDER BY e.place"
        " RETURNING id",
        [
            process,
            marked_by,
            [one.transaction.txn_id for one in failed],
            [one.transaction.commit_scn for one in failed],
            [one.transaction.committed_at_us for one in failed],
            [one.failure.message_number for one in failed],
            [len(one.transaction.changes) for one in failed],
            [error.number for error in errors],
            [error.code for error in errors],
            [str(error) for error in errors],
            [None if error.found is None else encode_image(error.found, is_ascii=True) for error in errors],
            [one.marks is not None for one in failed],
        ],
    ).fetchall()
    # Numbers are drawn in the order in which the rows come.
    ids = sorted(number for (number,) in rows)
    _copy_changes(connection, process, [(number, one.transaction) for number, one in zip(ids, failed, strict=True)])
    for number, one in zip(ids, failed, strict=True):
        if one.marks is not None:
            write_blocked_keys(connection, process, one.marks, [number], [one.transaction.commit_scn])


def waiting_ddl(connection: Connection, process: str, table: TableName, before: Scn) -> list[tuple[int, Change]]:
    """Return what transactions in the error queue that were committed before one are to do to a table, oldest first.

    Each with the number of its entry.
    """
    rows = connection.execute(
        "SELECT e.id, c.change_seq, c.table_version, c.before FROM penstock.error e JOIN penstock.error_change c"
        " ON c.process = e.process AND c.error_id = e.id WHERE e.process = %s AND e.commit_scn < %s AND c.op = 'ddl'"
        " AND (c.schema_name, c.table_name) = (%s, %s) ORDER BY e.commit_scn, e.id, c.message_number",
        [process, before, table.schema, table.name],
    )
    return [(number, Change(seq, Op.DDL, table, version, told, None)) for number, seq, version, told in rows]


class WaitingDdl:
    """The alterations that wait in the error queue; of a long queue only what is new is read again."""

    def __init__(self, connection: Connection, process: str) -> None:
        """Look into the queue of a process; nothing is read yet."""
        self._connection = connection
        self._process = process
        self._read_to = 0
        self._found: list[tuple[int, int, TableName, Change]] = []

    def unfollowed(self, before: int | None = None) -> dict[TableName, tuple[Unfollowed, ...]]:
        """Return what they mean for changes behind them, by table.

        Args:
            before: Only those of transactions that were committed before this one.
        """
        self._read()
        by_table: dict[TableName, list[tuple[str, Change]]] = {}
        for scn, number, table, change in self._found:
            if before is None or scn < before:
                by_table.setdefault(table, []).append((f"{self._process}.{number}", change))
        return {table: unfollowed(waiting) for table, waiting in by_table.items()}

    def _read(self) -> None:
        numbers = {number for _, number, _, _ in self._found}
        there = "SELECT id FROM penstock.error WHERE process = %s AND id = ANY (%s)"
        if numbers and len(self._connection.execute(there, [self._process, list(numbers)]).fetchall()) < len(numbers):
            # What was applied may have given tables other names.
            self._read_to, self._found = 0, []
        row = self._connection.execute(
            "SELECT coalesce(max(id), 0) FROM penstock.error WHERE process = %s", [self._process]
        ).fetchone()
        assert row is not None
        if row[0] <= self._read_to:
            return
        rows = self._connection.execute(
            "SELECT e.commit_scn, e.id, c.message_number, c.schema_name, c.table_name, c.change_seq, c.table_version,"
            " c.before FROM penstock.error e JOIN penstock.error_change c"
            " ON c.process = e.process AND c.error_id = e.id"
            " WHERE e.process = %s AND e.id > %s AND c.error_id > %s AND c.op = 'ddl' ORDER BY 1, 2, 3",
            [self._process, self._read_to, self._read_to],
        ).fetchall()
        for scn, number, _, schema, name, seq, version, told in rows:
            table = TableName(schema, name)
            self._found.append((scn, number, table, Change(seq, Op.DDL, table, version, told, None)))
        # In the order in which they were committed; those of one transaction stay in theirs.
        self._found.sort(key=lambda one: one[:2])
        self._read_to = row[0]


def follow_columns(
    connection: Connection, process: str, table: TableName, called: Mapping[str, str], before: Scn
) -> None:
    """Have changes that wait name the columns as they are called now: a retry must not meet others of their names.

    Args:
        called: The new names, by the old ones.
        before: Only changes of transactions that were committed before this one.
    """
    image = (
        "coalesce((SELECT json_object_agg(coalesce(n.new, i.key), i.value ORDER BY i.place) FROM json_each(c.{0})"
        " WITH ORDINALITY i (key, value, place) LEFT JOIN called n ON n.old = i.key), c.{0})"
    )
    connection.execute(
        "WITH called AS (SELECT * FROM unnest(%s::text[], %s::text[]) n (old, new))"
        f" UPDATE penstock.error_change c SET before = {image.format('before')}, after = {image.format('after')}"
        " FROM penstock.error e WHERE (c.process, c.error_id) = (e.process, e.id) AND e.process = %s"
        " AND e.commit_scn < %s AND (c.schema_name, c.table_name) = (%s, %s)"
        " AND c.op IN ('insert', 'update', 'delete', 'snapshot')",
        [list(called), list(called.values()), process, before, table.schema, table.name],
    )


def put_held(
    connection: Connection, process: str, transactions: Sequence[Transaction], marks: BlockedKeys, marked_by: int
) -> None:
    """Insert transactions into the error queue that wait for others there; no two of them have one position."""
    rows = connection.execute(
        "INSERT INTO penstock.error (process, txn_id, commit_scn, committed_at, message_number, message_count,"
        " error_number, error_message, is_held, marked_by)"
        " SELECT %s, t.txn_id, t.scn, to_timestamp(t.us / 1000000.0), 0, t.changes, 0, %s, true, %s"
        " FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::int[]) t (txn_id, scn, us, changes) ORDER BY t.scn"
        " RETURNING commit_scn, id",
        [
            process,
            HELD_MESSAGE,
            marked_by,
            [one.txn_id for one in transactions],
            [one.commit_scn for one in transactions],
            [one.committed_at_us for one in transactions],
            [len(one.changes) for one in transactions],
        ],
    ).fetchall()
    id_of: dict[int, int] = dict(rows)
    _copy_changes(connection, process, [(id_of[one.commit_scn], one) for one in transactions])
    scns = [one.commit_scn for one in transactions]
    write_blocked_keys(connection, process, marks, [id_of[scn] for scn in scns], scns)


def _copy_changes(connection: Connection, process: str, entries: Sequence[tuple[int, Transaction]]) -> None:
    with connection.cursor().copy(
        "COPY penstock.error_change (process, error_id, message_number, op, schema_name, table_name, table_version,"
        " change_seq, before, after) FROM STDIN"
    ) as copy:
        for error_id, transaction in entries:
            for number, change in enumerate(transaction.changes, start=1):
                images = (
                    None if image is None else encode_image(image, is_ascii=True)
                    for image in (change.before, change.after)
                )
                copy.write_row(
                    [
                        process,
                        error_id,
                        number,
                        change.op.value,
                        change.table.schema,
                        change.table.name,
                        change.table_version,
                        change.change_seq,
                        *images,
                    ]
                )
