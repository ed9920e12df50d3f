"""Which transactions lie at or before a position of the change log, for another reader of the same database."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dialects.postgres.connection import Connection
from penstock.dialects.postgres.source.snapshots import Cut
from penstock.source_switch import Mark

_ROUND = 1 << 32
"""The write-ahead log names transactions by the last 32 bits of their ids."""

_FAR = 1 << 24
"""No transaction that begins this much later is committed before one that is over at once."""


@dataclass(frozen=True)
class PostgresSwitchSource:
    """Implements `source_switch.SwitchSource`."""

    cut: Cut
    first: Mark
    last: Mark

    def is_applied(self, txn: str) -> bool:
        """Whether it is in the cut; ids of an earlier round, which look like later ones, are."""
        near = self.cut.snapshot.xmax
        ahead = (int(txn) - near) % _ROUND
        xid = near + (ahead - _ROUND if ahead >= _ROUND // 2 else ahead)
        return self.cut.has(xid) or xid >= near + _FAR


def mark(connection: Connection) -> Mark:
    """Commit a transaction that changes no row, and that logical decoding tells of."""
    after = _end_of_log(connection)
    with connection.transaction():
        row = connection.execute(
            "SELECT (pg_current_xact_id()::text::bigint % 4294967296)::text,"
            " pg_logical_emit_message(true, 'penstock', 'switch')"
        ).fetchone()
    assert row is not None
    return Mark(row[0], after, _end_of_log(connection))


def _end_of_log(connection: Connection) -> int:
    row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
    assert row is not None
    return int(row[0])
