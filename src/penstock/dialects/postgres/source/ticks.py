"""Ticks: snapshots stored in a source, which cut its change log into intervals.

They are rows of the source database, so every reader cuts the log at the same places.
A transaction's SCN is the one of the tick before it and its rank behind that, which `change_log._read_page` counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from penstock.dialects.postgres.connection import Connection, at_once, label, literal, quote
from penstock.dialects.postgres.source.snapshots import Snapshot
from penstock.errors import OperatorError
from penstock.history import HistoryError
from penstock.position import Anchor, Scn


@dataclass(frozen=True)
class Tick:
    """A cut through the log: every transaction visible in `snapshot` has a `commit_scn` of at most `scn`."""

    scn: Scn
    snapshot: Snapshot
    mark: str

    @property
    def anchor(self) -> Anchor:
        """What it is recognised by."""
        return Anchor(self.scn, self.mark)


class Ticks:
    """The ticks of one capture set; every call raises what psycopg does.

    `first` and `last` raise OperatorError where there is none at all.
    """

    def __init__(self, session: Callable[[], Connection], url: str, set_name: str) -> None:
        """Use the session that `session` returns, in the database at `url`."""
        self._session = session
        self._url = url
        self._set_name = set_name
        self._table = f"{quote(set_name)}.tick"

    def at_or_before(self, scn: Scn) -> Tick | None:
        """Return the last tick that is not behind a position."""
        return self._find("WHERE scn <= %s ORDER BY scn DESC", scn)

    def behind(self, scn: Scn) -> Tick | None:
        """Return the first tick behind a position."""
        return self._find("WHERE scn > %s ORDER BY scn", scn)

    def first(self) -> Tick:
        """Return the earliest tick that was not freed."""
        return self._present(self._find("ORDER BY scn"))

    def last(self) -> Tick:
        """Return the latest tick."""
        return self._present(self._find("ORDER BY scn DESC"))

    def has(self, anchor: Anchor) -> bool:
        """Whether there is this very tick."""
        found = self._find("WHERE scn = %s", anchor.scn)
        return found is not None and found.mark == anchor.mark

    def add(self, last: Tick, snapshot: Snapshot) -> Tick | None:
        """Add a tick, whose snapshot was taken after `last` was read; None when that is not the last one any more.

        It is on disk when this returns: what is cut by it may be applied, and a server that crashes still has it.
        """
        if snapshot.xmax < last.snapshot.xmax or snapshot.xmin < last.snapshot.xmin:
            raise HistoryError(
                "the log was cut at transactions that the server has not begun yet: the server was restored in part,"
                " or the capture set comes from another one",
                where=f"capture set {self._set_name}, {label(self._url)}",
            )
        # Each transaction of the interval was in progress at the last tick or began after it, which bounds how
        # many there are; so ranks added to the last tick's scn stay below this one's.
        scn = Scn(last.scn + len(last.snapshot.running) + snapshot.xmax - last.snapshot.xmax + 1)
        mark = str(uuid.uuid4())
        *_, added = at_once(
            self._session(),
            f"LOCK TABLE {self._table} IN SHARE ROW EXCLUSIVE MODE",
            "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'",
            f"INSERT INTO {self._table} (scn, snapshot, at, mark)"
            f" SELECT {scn}, {literal(snapshot.text)}, clock_timestamp(), {literal(mark)}"
            f" WHERE NOT EXISTS (SELECT FROM {self._table} WHERE scn > {last.scn})",
        )
        return Tick(scn, snapshot, mark) if added else None

    def _find(self, which: str, *values: Scn) -> Tick | None:
        query = f"SELECT scn, snapshot::text, mark::text FROM {self._table} {which} LIMIT 1"
        row = self._session().execute(query, values).fetchone()
        return Tick(Scn(row[0]), Snapshot.parse(row[1]), row[2]) if row else None

    def _present(self, tick: Tick | None) -> Tick:
        if tick is None:
            raise OperatorError(
                "the capture set holds no tick",
                where=f"capture set {self._set_name}, {label(self._url)}",
                do="run `penstock setup`",
            )
        return tick
