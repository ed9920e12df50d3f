"""The change log inside a PostgreSQL source: slices of it, its rows, and freeing them.

The transactions between two ticks are those visible in the later one and not in the earlier one (trigger-capture.md
16.5), in the order of their last sequence number, which is a legal serial order (15.2, 16.8). A transaction has the
same `commit_scn` on every read: the `scn` of the tick before it plus its rank in the interval.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.change import TableName
from penstock.dialects.postgres.arrow import ArrowReader
from penstock.dialects.postgres.connection import Connection, at_once, connect, label, literal, quote, speaking
from penstock.dialects.postgres.snapshots import Cut, Snapshot
from penstock.dialects.postgres.ticks import Tick, Ticks
from penstock.dialects.postgres.wake import Sleeper
from penstock.errors import OperatorError, RetryableError
from penstock.position import Limit, Scn
from penstock.schema import TableSchema
from penstock.sources.trigger_queue.decode import change_by_change
from penstock.sources.trigger_queue.position import Slice
from penstock.sources.trigger_queue.queue import Backlog, Captured

_PAGE = 1_000_000
"""Most transactions of one interval held in memory at once."""

_WIDE_BYTES = 64 * 1024 * 1024
"""A batch of rows is larger only where a single row is."""

_GAP = 10_000
"""Transaction ids further apart than this are read as separate ranges."""


class ChangeLog:
    """Reads one capture set's log. Sessions are opened when first needed and kept.

    Not for use by two threads at once.
    """

    def __init__(self, url: str, set_name: str) -> None:
        """Read the set named `set_name` in the database at `url`."""
        self._url = url
        self._set_name = set_name
        self._set = quote(set_name)
        self._ticks = Ticks(self._sql, url, set_name)
        self._session: Connection | None = None
        self._reader: ArrowReader | None = None
        self._page: Slice | None = None
        self._sleeper: Sleeper | None = None
        self._freed_below = 0

    def open(self) -> None:
        """Open the sessions now, so that the first calls need not wait for them."""
        with speaking("read the change log", self._url):
            self._sql()
            self._arrow()

    def next_slice(self, after: Scn, limit: Limit, *, until: Scn | None = None) -> Slice | None:
        """Return the transactions that follow `after`, as many as `limit` allows; None when there are none yet.

        The log is cut here if it has not been cut behind `after` yet. With `until` it is only read up to that
        position, which an earlier slice ended at. A slice without transactions only moves the position.

        Raises:
            OperatorError: The log does not hold what follows `after` (any more).
            RetryableError: The source cannot be reached.
        """
        if until is not None and after >= until:
            return None
        page = self._page
        if page is None or not page.has_next(after):
            with speaking("read the change log", self._url):
                page = self._page = self._find_page(after, may_cut=until is None)
                if page is None:
                    return None
                if self._sleeper is not None:
                    self._sleeper.rise()
        return page.take(after, limit, until)

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when `next_slice`, which had nothing, may have something; after the timeout at the latest."""
        with speaking("wait for changes", self._url):
            session = self._sql()
            if self._sleeper is None:
                self._sleeper = Sleeper(session, self._set_name)
            self._sleeper.wait(stop, timeout_s)

    def tick(self) -> Scn:
        """Cut the log now. Every transaction committed before the call lies at or before the result."""
        return self.tick_at(lambda: Snapshot.current(self._sql()))

    def tick_at(self, take: Callable[[], Snapshot]) -> Scn:
        """Cut the log at the snapshot that `take` takes when called, in whichever session it likes.

        It is called again where somebody else has cut the log in the meantime.
        """
        with speaking("cut the change log", self._url):
            tick = None
            while tick is None:
                last = self._ticks.last()
                tick = self._ticks.add(last, take())
            return tick.scn

    def earliest(self) -> Scn:
        """Return the earliest position that can still be read from."""
        with speaking("read the change log", self._url):
            return self._ticks.first().scn

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the log rows of a slice (`decode.LOG_SCHEMA`), with rows of other transactions in between."""
        for low, high in _ranges(part.txn_ids):
            stored = self._stream(
                "SELECT xid::text::bigint AS txn_id, seq, relid::bigint, version, op::text, before, after"
                f" FROM {self._set}.log WHERE xid >= '{low}'::xid8 AND xid <= '{high}'::xid8 ORDER BY log.xid, seq"
            )
            for batch in stored:
                yield change_by_change(batch)

    def captured(self) -> list[Captured]:
        """Return every version of every captured table, oldest first."""
        with speaking("read the captured tables", self._url):
            rows = self._sql().execute(
                "SELECT c.relid::bigint, c.version, c.definition, r.definition ->> 'schema', r.definition ->> 'name'"
                f" FROM {self._set}.captured c LEFT JOIN LATERAL (SELECT definition FROM {self._set}.captured r"
                " WHERE r.relid = c.root ORDER BY r.version DESC LIMIT 1) r ON c.root <> c.relid"
                " ORDER BY c.relid, c.version"
            )
            found = []
            for relid, version, definition, root_schema, root_name in rows:
                table = TableSchema.from_definition(definition, version=version)
                root = TableName(root_schema, root_name) if root_name else table.name
                found.append(Captured(relid, table, definition, root))
            return found

    def captured_count(self) -> int:
        """How many table versions there are."""
        with speaking("read the captured tables", self._url):
            row = self._sql().execute(f"SELECT count(*) FROM {self._set}.captured").fetchone()
            assert row is not None
            return int(row[0])

    def cut(self, after: Scn, also: Sequence[Scn] = ()) -> Cut:
        """Say which transactions lie at or before a position, and at some positions besides.

        Raises:
            RetryableError: The log has been freed beyond that position in the meantime.
        """
        with speaking("read the change log", self._url):
            start = self._ticks.at_or_before(after)
            if start is None:
                raise RetryableError("the change log was freed in the meantime", where=label(self._url))
            if start.scn == after and not also:
                return Cut(start.snapshot)
            end = self._ticks.behind(start.scn)
            if end is None:
                raise RetryableError("the change log was freed in the meantime", where=label(self._url))
            ids = self._read_page(start, end.snapshot, end.scn, skip=0).txn_ids
            extra = [*range(start.scn + 1, after + 1), *also]
            return Cut(start.snapshot, [int(ids[scn - start.scn - 1]) for scn in extra])

    def free(self, upto: Scn) -> int:
        """Delete what no reader at `upto` or later needs. Returns the number of log rows deleted.

        Only whole intervals are freed, so that ranks in an interval that is half read stay what they are.
        """
        with speaking("free the change log", self._url):
            tick = self._ticks.at_or_before(upto)
            if tick is None:
                return 0
            cut = tick.snapshot
            is_over = (
                f"xid >= '{self._freed_below}'::xid8 AND xid < '{cut.xmax}'::xid8"
                f" AND pg_visible_in_snapshot(xid, {literal(cut.text)}::pg_snapshot)"
            )
            # One transaction: who still finds a tick finds all of the log behind it.
            freed, _, _ = at_once(
                self._sql(),
                f"DELETE FROM {self._set}.log WHERE {is_over}",
                f"DELETE FROM {self._set}.marker WHERE {is_over}",
                f"DELETE FROM {self._set}.tick WHERE scn < {tick.scn}",
            )
        self._freed_below = cut.xmin
        return freed

    def backlog(self, after: Scn) -> Backlog:
        """Count what waits behind a position; may count changes that were delivered since the last whole interval."""
        with speaking("read the change log", self._url):
            tick = self._ticks.at_or_before(after)
            row = (
                self._sql()
                .execute(
                    f"SELECT coalesce(sum(changes), 0)::bigint, min(at), pg_total_relation_size('{self._set}.log')"
                    f" FROM {self._set}.log WHERE NOT pg_visible_in_snapshot(xid, %s::pg_snapshot)",
                    [tick.snapshot.text if tick else "1:1:"],
                )
                .fetchone()
            )
            assert row is not None
            return Backlog(*row)

    def close(self) -> None:
        """Close the sessions that were opened; a later call opens them again."""
        if self._session is not None:
            self._session.close()
        self._session = self._page = self._sleeper = None
        self._close_reader()

    def _find_page(self, after: Scn, *, may_cut: bool) -> Slice | None:
        start = self._ticks.at_or_before(after)
        end = self._ticks.behind(after)
        if start is None or (end is None and start.scn != after):
            raise OperatorError(
                f"the change log does not hold what follows position {after}",
                where=f"capture set {self._set_name}, {label(self._url)}",
                do="the set was made anew, or freed by another process: `penstock teardown` and `setup` start afresh",
            )
        if end is not None:
            return self._read_page(start, end.snapshot, end.scn, skip=after - start.scn)
        return self._cut_page(start) if may_cut else None

    def _cut_page(self, last: Tick) -> Slice | None:
        """List what was committed since the last tick, and cut behind it; None when that is nothing."""
        snapshot = Snapshot.current(self._sql())
        page = self._read_page(last, snapshot, last.scn, skip=0)
        if len(page) == 0:
            return None
        tick = self._ticks.add(last, snapshot)
        if tick is None:
            # Another session has cut in between, and there is its tick.
            return self._find_page(last.scn, may_cut=False)
        return page if len(page) == _PAGE else replace(page, end=tick.scn)

    def _read_page(self, start: Tick, upto: Snapshot, end: Scn, *, skip: int) -> Slice:
        """List the transactions between two snapshots in commit order, leaving out the first `skip`.

        Returns:
            At most a page of them, which ends at `end` unless it is full: then more may follow.
        """
        ranked = (
            "SELECT xid, sum(changes)::bigint AS changes, max(seq) AS last_seq, max(at) AS at,"
            " sum(coalesce(octet_length(before), 0) + coalesce(octet_length(after), 0))::bigint AS size_bytes"
            f" FROM {self._set}.log"
        )
        is_seen = f"xid < '{upto.xmax}'::xid8 AND pg_visible_in_snapshot(xid, '{upto.text}'::pg_snapshot)"
        running = ",".join(map(str, start.snapshot.running))
        oldest = min([start.snapshot.xmax, *start.snapshot.running])
        most = upto.xmax - start.snapshot.xmax + len(start.snapshot.running)
        # What fits into a page is put in order here, in a tenth of the time.
        by_place = f" ORDER BY place LIMIT {_PAGE} OFFSET {skip}" if most > _PAGE else ""
        found = self._arrow().table(
            "SELECT xid::text::bigint AS txn_id, changes, size_bytes, at, greatest(last_seq, commit_seq) AS place"
            " FROM ("
            f"{ranked} WHERE xid >= '{start.snapshot.xmax}'::xid8 AND {is_seen} GROUP BY xid"
            f" UNION ALL {ranked} WHERE xid = ANY ('{{{running}}}'::xid8[]) AND {is_seen} GROUP BY xid"
            f") t LEFT JOIN (SELECT * FROM {self._set}.marker WHERE xid >= '{oldest}'::xid8) m USING (xid)"
            f"{by_place}",
            doing="read the change log",
        )
        order = np.argsort(found["place"].to_numpy(), kind="stable")[0 if by_place else skip :]
        after = Scn(start.scn + skip)
        return Slice(
            after=after,
            end=end if len(order) < _PAGE else Scn(after + len(order)),
            first=Scn(after + 1),
            txn_ids=found["txn_id"].to_numpy()[order],
            changes=found["changes"].to_numpy()[order],
            size_bytes=found["size_bytes"].to_numpy()[order],
            committed_at_us=found["at"].cast(pa.int64()).to_numpy()[order],
        )

    def _sql(self) -> Connection:
        if self._session is None or self._session.closed:
            self._session = connect(self._url, f"penstock {self._set_name} log")
            self._sleeper = None
        return self._session

    def _stream(self, query: str) -> Iterator[pa.RecordBatch]:
        doing = "read the change log"
        was_kept, is_wide = self._reader is not None, False
        batches = self._arrow().stream(query, doing=doing)
        try:
            first = next(batches, None)
        except RetryableError:
            if not was_kept:
                raise
            # The session served an earlier task, and was cut off since.
            self.close()
            batches = self._arrow().stream(query, doing=doing)
            first = next(batches, None)
        if first is not None:
            for batch in chain([first], batches):
                is_wide = is_wide or batch.nbytes > _WIDE_BYTES
                yield batch
        if is_wide:
            # The session keeps the room that its largest row took.
            self._close_reader()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    def _arrow(self) -> ArrowReader:
        if self._reader is None:
            # The index yields (xid, seq) order; without statistics the planner would rather scan and sort.
            plan = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_nestloop": "off", "work_mem": "64MB"}
            self._reader = ArrowReader(self._url, f"penstock {self._set_name} reader", plan)
        return self._reader


def _ranges(txn_ids: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cover transaction ids by few ranges: one for those that ran together, one each for stragglers."""
    if len(txn_ids) == 0:
        return
    ids = np.sort(txn_ids)
    breaks = np.flatnonzero(np.diff(ids) > _GAP)
    for low, high in zip(np.r_[0, breaks + 1], np.r_[breaks, len(ids) - 1], strict=True):
        yield int(ids[low]), int(ids[high])
