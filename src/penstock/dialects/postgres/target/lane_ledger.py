"""The lanes' entries in the ledger, written through the lane's own connection."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import psycopg
from numpy.typing import NDArray

from penstock.apply.apply_errors import CONFLICTS
from penstock.apply.blocked_keys import BlockedKeyIndex, BlockedKeys
from penstock.apply.conflict_methods import Resolution
from penstock.apply.ledger import Failed, LaneClaim, LaneLedger
from penstock.change import TableName, Transaction
from penstock.dialects.postgres.connection import Connection, speaking
from penstock.dialects.postgres.target.blocked_keys import QueueCache
from penstock.dialects.postgres.target.conflict_log import log_resolutions
from penstock.dialects.postgres.target.error_entries import put_errors, put_held
from penstock.errors import FencedError

_LOCK_TIMEOUT_MS = 5_000
"""How long an earlier attempt may take to end what it is committing."""


def lane_application_name(process: str) -> str:
    """The application name of a process's apply servers, by which a later run finds those left behind."""
    return f"penstock {process} apply"


class PostgresLaneLedger(LaneLedger):
    """Writes the lane's entries through the lane's own connection."""

    def __init__(self, url: str, connection: Connection, claim: LaneClaim, cache: QueueCache | None = None) -> None:
        """Write entries for `claim` through `connection`, a session at `url`, inside its open transaction.

        Args:
            cache: What is known already of the error queue.
        """
        self._cache = cache or QueueCache()
        self._marked_by: int | None = None
        self._url = url
        self._connection = connection
        self._claim = claim

    def claim(self) -> NDArray[np.int64]:
        """See `LaneLedger.claim`. An earlier attempt that does not give the lane up in time has its session ended."""
        with speaking("claim a lane", self._url):
            try:
                return self._take(self._claim, lock_timeout_ms=_LOCK_TIMEOUT_MS)
            except psycopg.errors.LockNotAvailable:
                # Nothing but the claim was done in this transaction.
                self._connection.execute("ROLLBACK")
                self._end_holder(self._claim)
                self._connection.execute("BEGIN")
                return self._take(self._claim, lock_timeout_ms=0)

    def record(self, commit_scns: NDArray[np.int64], *, changes: int) -> None:
        """See `LaneLedger.record`."""
        with speaking("write the ledger", self._url):
            self._write(self._claim, commit_scns.tolist(), changes)

    def queued(self, marked_by: int) -> BlockedKeyIndex:
        """See `LaneLedger.queued`."""
        self._marked_by = marked_by
        with speaking("read the error queue", self._url):
            return self._cache.read(self._connection, self._claim.process, marked_by)

    def put_held(self, transactions: Sequence[Transaction], marks: BlockedKeys) -> None:
        """See `LaneLedger.put_held`."""
        assert self._marked_by is not None
        with speaking("write the error queue", self._url):
            self._connection.execute(
                "UPDATE penstock.lane SET transactions = transactions - %s, changes = changes - %s, held = held + %s"
                " WHERE process = %s AND lane = %s",
                [
                    len(transactions),
                    sum(len(one.changes) for one in transactions),
                    len(transactions),
                    self._claim.process,
                    self._claim.lane,
                ],
            )
            put_held(self._connection, self._claim.process, transactions, marks, self._marked_by)

    def put_errors(self, failed: Sequence[Failed]) -> None:
        """See `LaneLedger.put_errors`."""
        with speaking("write the error queue", self._url):
            self._connection.execute(
                "UPDATE penstock.lane SET transactions = transactions - %s, changes = changes - %s,"
                " errors = errors + %s, conflicts = conflicts + %s WHERE process = %s AND lane = %s",
                [
                    sum(one.is_whole for one in failed),
                    sum(len(one.transaction.changes) for one in failed),
                    len(failed),
                    sum(one.failure.error.number in CONFLICTS for one in failed),
                    self._claim.process,
                    self._claim.lane,
                ],
            )
            put_errors(self._connection, self._claim.process, failed, self._marked_by)

    def note_resolutions(self, resolved: Sequence[tuple[Transaction, Sequence[Resolution]]]) -> None:
        """See `LaneLedger.note_resolutions`."""
        with speaking("write the conflict log", self._url):
            log_resolutions(self._connection, self._claim.process, resolved)
            self._connection.execute(
                "UPDATE penstock.lane SET resolved = resolved + %s WHERE process = %s AND lane = %s",
                [sum(len(one) for _, one in resolved), self._claim.process, self._claim.lane],
            )

    def note_emptied(self, tables: Collection[TableName], commit_scn: int) -> None:
        """See `LaneLedger.note_emptied`."""
        with speaking("write the ledger", self._url):
            self._connection.execute(
                "INSERT INTO penstock.emptied AS e (process, schema_name, table_name, scn)"
                " SELECT %s, t.s, t.n, %s FROM unnest(%s::text[], %s::text[]) t (s, n)"
                " ON CONFLICT (process, schema_name, table_name) DO UPDATE SET scn = greatest(e.scn, excluded.scn)",
                [self._claim.process, commit_scn, [t.schema for t in tables], [t.name for t in tables]],
            )

    def _end_holder(self, claim: LaneClaim) -> None:
        """End the session of an earlier attempt that keeps the lane: its machine hangs, or is cut off."""
        # A session that has locked the row shows up as its `xmax`.
        self._connection.execute(
            "SELECT pg_terminate_backend(a.pid) FROM penstock.lane l"
            " JOIN pg_stat_activity a ON a.backend_xid::text = l.xmax::text"
            " WHERE l.process = %s AND l.lane = %s AND l.epoch = %s AND l.attempt <= %s AND a.application_name = %s",
            [claim.process, claim.lane, claim.epoch, claim.attempt, lane_application_name(claim.process)],
        )

    def _take(self, claim: LaneClaim, *, lock_timeout_ms: int) -> NDArray[np.int64]:
        self._connection.execute(f"SET LOCAL lock_timeout = {lock_timeout_ms}")
        taken = self._connection.execute(
            "UPDATE penstock.lane SET attempt = %s, cut_scn = coalesce(%s, cut_scn), cut_mark = coalesce(%s, cut_mark)"
            " WHERE process = %s AND lane = %s AND epoch = %s AND attempt <= %s",
            [
                claim.attempt,
                claim.cut.scn if claim.cut is not None else None,
                claim.cut.mark if claim.cut is not None else None,
                claim.process,
                claim.lane,
                claim.epoch,
                claim.attempt,
            ],
        )
        if taken.rowcount == 0:
            raise self._fenced()
        rows = self._connection.execute(
            "SELECT low_watermark FROM penstock.process WHERE name = %(process)s"
            " UNION ALL SELECT unnest(commit_scns) FROM penstock.applied WHERE process = %(process)s",
            {"process": claim.process},
        ).fetchall()
        return np.array([row[0] for row in rows], np.int64)

    def _write(self, claim: LaneClaim, scns: list[int], changes: int) -> None:
        if claim.moves_watermark:
            entry = (
                "UPDATE penstock.process SET low_watermark = %(last)s, high_watermark = %(last)s, applied_at = now()"
                " WHERE name = %(process)s AND EXISTS (SELECT FROM lane) RETURNING 1"
            )
        else:
            entry = (
                "INSERT INTO penstock.applied (process, highest_scn, commit_scns)"
                " SELECT %(process)s, %(last)s, %(scns)s FROM lane RETURNING 1"
            )
        row = self._connection.execute(
            "WITH lane AS (UPDATE penstock.lane SET transactions = transactions + %(transactions)s,"
            " changes = changes + %(changes)s"
            " WHERE process = %(process)s AND lane = %(lane)s AND epoch = %(epoch)s AND attempt = %(attempt)s"
            f" RETURNING 1), entry AS ({entry}) SELECT count(*) FROM entry",
            {
                "process": claim.process,
                "lane": claim.lane,
                "epoch": claim.epoch,
                "attempt": claim.attempt,
                "transactions": len(scns),
                "changes": changes,
                "last": scns[-1],
                "scns": scns,
            },
        ).fetchone()
        if row is None or row[0] == 0:
            raise self._fenced()

    def _fenced(self) -> FencedError:
        return FencedError(
            "another run, or a later attempt at the same work, has taken over",
            where=f"process {self._claim.process!r}, lane {self._claim.lane}, epoch {self._claim.epoch}",
        )
