"""Marks of entries of the error queue in a PostgreSQL ledger, and which entries they keep back (ADR 49)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.apply.blocked_keys import KEPT_BY, BlockedKeyIndex, BlockedKeys
from penstock.dialects.postgres.connection import Connection

_KEPT_BY = " ".join(
    f"WHEN {int(use)} THEN '{{{','.join(str(int(other)) for other in others)}}}'::smallint[]"
    for use, others in KEPT_BY.items()
)

WAITS_FOR = f"""(
SELECT b.error_id FROM penstock.error_mark m
CROSS JOIN LATERAL unnest(CASE m.use {_KEPT_BY} END) k (use)
CROSS JOIN LATERAL (
  SELECT k2.error_id, k2.commit_scn FROM penstock.error_mark k2
  WHERE k2.process = m.process AND k2.value = m.value AND k2.use = k.use AND k2.commit_scn < m.commit_scn
  ORDER BY k2.commit_scn LIMIT 1
) b
WHERE m.process = e.process AND m.error_id = e.id ORDER BY b.commit_scn LIMIT 1
)"""
"""The first entry of the queue that entry `e` waits for: a look into an index for each mark, however long the queue."""


def write_blocked_keys(
    connection: Connection, process: str, marks: BlockedKeys, ids: Sequence[int], commit_scns: Sequence[int]
) -> None:
    """Write the marks of entries; `ids` and `commit_scns` line up with the numbers of their transactions."""
    if not len(marks):
        return
    places = marks.txn.tolist()
    with connection.cursor().copy(
        "COPY penstock.error_mark (process, error_id, value, use, commit_scn) FROM STDIN"
    ) as copy:
        for place, value, use in zip(places, marks.value.view(np.int64).tolist(), marks.use.tolist(), strict=True):
            copy.write_row([process, ids[place], value, use, commit_scns[place]])


class QueueCache:
    """The marks of a process's queue, as a worker holds them from batch to batch."""

    def __init__(self) -> None:
        """Begin with none."""
        self._forget(0)

    def _forget(self, marked_by: int) -> None:
        self._marked_by = marked_by
        self._digest: tuple[object, ...] = ()
        self._entry: NDArray[np.int64] = np.zeros(0, np.int64)
        self._value: NDArray[np.int64] = np.zeros(0, np.int64)
        self._use: NDArray[np.int8] = np.zeros(0, np.int8)

    def read(self, connection: Connection, process: str, marked_by: int) -> BlockedKeyIndex:
        """Return the marks as they are now; only those of entries that came since the last call are read."""
        if marked_by != self._marked_by:
            # All of them were made anew.
            self._forget(marked_by)
        digest = connection.execute(
            "SELECT count(*), coalesce(sum(id), 0), coalesce(sum(hashint8(id)::bigint), 0) FROM penstock.error"
            " WHERE process = %s",
            [process],
        ).fetchone()
        assert digest is not None
        if digest != self._digest:
            self._refresh(connection, process)
            self._digest = digest
        return BlockedKeyIndex(self._value.view(np.uint64), self._use)

    def _refresh(self, connection: Connection, process: str) -> None:
        known = np.unique(self._entry)
        # One statement, so one view of the queue: an entry may give way to another in between.
        row = connection.execute(
            "WITH entry AS (SELECT id FROM penstock.error WHERE process = %(process)s),"
            " mark AS (SELECT m.error_id, m.value, m.use FROM penstock.error_mark m JOIN entry ON entry.id = m.error_id"
            "   WHERE m.process = %(process)s"
            "   AND NOT EXISTS (SELECT FROM unnest(%(known)s::bigint[]) k (id) WHERE k.id = m.error_id))"
            " SELECT coalesce((SELECT array_agg(id) FROM entry), '{}'), coalesce(array_agg(error_id), '{}'),"
            " coalesce(array_agg(value), '{}'), coalesce(array_agg(use), '{}') FROM mark",
            {"process": process, "known": known.tolist()},
        ).fetchone()
        assert row is not None
        ids, entry, value, use = row
        stays = np.isin(self._entry, np.array(ids, np.int64))
        self._entry = np.r_[self._entry[stays], np.array(entry, np.int64)]
        self._value = np.r_[self._value[stays], np.array(value, np.int64)]
        self._use = np.r_[self._use[stays], np.array(use, np.int8)]


def next_to_go_on(connection: Connection, process: str, after: tuple[int, int]) -> tuple[int, int] | None:
    """Return position and id of the first held entry behind another one that may go on; None without one."""
    return connection.execute(
        "SELECT e.commit_scn, e.id FROM penstock.error e WHERE e.process = %s AND e.is_held"
        " AND e.on_hold_at IS NULL"
        f" AND (e.commit_scn, e.id) > (%s, %s) AND {WAITS_FOR} IS NULL ORDER BY e.commit_scn, e.id LIMIT 1",
        [process, *after],
    ).fetchone()


def unmarked(connection: Connection, process: str, marked_by: int, most: int) -> list[int]:
    """Return entries whose marks were made by other keys, or that have none, and lock them."""
    rows: Iterable[tuple[int]] = connection.execute(
        "SELECT id FROM penstock.error WHERE process = %s AND marked_by IS DISTINCT FROM %s ORDER BY id LIMIT %s"
        " FOR NO KEY UPDATE",
        [process, marked_by, most],
    )
    return [number for (number,) in rows]


def replace_blocked_keys(connection: Connection, process: str, error_id: int, scn: int, marks: BlockedKeys) -> None:
    """Write the marks of an entry anew."""
    connection.execute("DELETE FROM penstock.error_mark WHERE process = %s AND error_id = %s", [process, error_id])
    write_blocked_keys(connection, process, marks, [error_id], [scn])


def note_marked(connection: Connection, process: str, error_ids: Sequence[int], marked_by: int) -> None:
    """Write down by which keys the marks of entries were made."""
    connection.execute(
        "UPDATE penstock.error SET marked_by = %s WHERE process = %s AND id = ANY (%s)",
        [marked_by, process, list(error_ids)],
    )
