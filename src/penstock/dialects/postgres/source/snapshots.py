"""PostgreSQL's snapshots, and positions expressed by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.dialects.postgres.connection import Connection, literal


@dataclass(frozen=True)
class Snapshot:
    """A `pg_snapshot`: ids below `xmin` are over, those from `xmax` on had not begun, `running` were in progress."""

    text: str
    xmin: int
    xmax: int
    running: tuple[int, ...]

    @classmethod
    def current(cls, session: Connection) -> Snapshot:
        """Take a snapshot in a session."""
        row = session.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        return cls.parse(row[0])

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read PostgreSQL's text form, `xmin:xmax:xid,xid`."""
        xmin, xmax, running = text.split(":")
        return cls(text, int(xmin), int(xmax), tuple(int(xid) for xid in running.split(",") if xid))


@dataclass(frozen=True)
class Cut:
    """A position in the log as a set of transactions: those visible in a snapshot, and these besides."""

    snapshot: Snapshot
    also: Sequence[int] = ()

    def has(self, xid: int) -> bool:
        """Whether a transaction that is over lies at or before the cut."""
        snapshot = self.snapshot
        return xid < snapshot.xmin or (xid < snapshot.xmax and xid not in snapshot.running) or xid in self.also

    def since(self) -> str:
        """SQL for a log row whose transaction lies behind the cut."""
        test = (
            f"xid >= '{self.snapshot.xmin}'::xid8"
            f" AND NOT pg_visible_in_snapshot(xid, {literal(self.snapshot.text)}::pg_snapshot)"
        )
        also = ",".join(map(str, self.also))
        return f"{test} AND xid <> ALL ('{{{also}}}'::xid8[])" if also else test
