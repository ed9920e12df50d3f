"""The change log inside a PostgreSQL source: slices of it, its rows, and freeing them.

The transactions between two ticks are those visible in the later one and not in the earlier one, in the order of
their last sequence number, which is a legal serial order (ADR 3). A transaction has the
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
from penstock.dialects.postgres.logical import with_logical
from penstock.dialects.postgres.ownership import refuse_foreign
from penstock.dialects.postgres.source.capture import refuse_newer
from penstock.dialects.postgres.source.history import (
    consumers,
    move,
    moving,
    places,
    read_facts,
    register,
    touch,
)
from penstock.dialects.postgres.source.snapshots import Cut, Snapshot
from penstock.dialects.postgres.source.ticks import Tick, Ticks
from penstock.dialects.postgres.source.wake import Sleeper
from penstock.errors import OperatorError, PenstockError, RetryableError
from penstock.history import Consumer, ConsumerState, History, Joined, freed, joined, older
from penstock.origins import EVERYTHING, Origins
from penstock.position import Anchor, Limit, Scn
from penstock.schema import TableSchema
from penstock.sources.trigger_queue.decode import change_by_change
from penstock.sources.trigger_queue.position import QueueSlice
from penstock.sources.trigger_queue.queue import ChangeLog
from penstock.stream import Backlog, TableVersion

_PAGE = 1_000_000
"""Most transactions of one interval held in memory at once."""

_WIDE_BYTES = 64 * 1024 * 1024
"""A batch of rows is larger only where a single row is."""

_GAP = 10_000
"""Transaction ids further apart than this are read as separate ranges."""


class PostgresChangeLog(ChangeLog):
    """Reads one capture set's log. Sessions are opened when first needed and kept.

    Not for use by two threads at once.
    """

    def __init__(
        self,
        url: str,
        set_name: str,
        origins: Origins = EVERYTHING,
        *,
        with_ddl: bool = False,
        with_messages: bool = False,
    ) -> None:
        """Read the set named `set_name` in the database at `url`, as far as its changes are of `origins`.

        Args:
            with_ddl: That a table was altered is a change, too.
            with_messages: So are messages.
        """
        self._with_ddl = with_ddl
        self._also = [op for op, is_wanted in (("A", with_ddl), ("M", with_messages)) if is_wanted]
        self._left_out = [op for op in ("A", "M") if op not in self._also]
        self._url = url
        self._origins = origins
        self._set_name = set_name
        self._set = quote(set_name)
        self._ticks = Ticks(self._sql, url, set_name)
        self._session: Connection | None = None
        self._reader: ArrowReader | None = None
        self._page: QueueSlice | None = None
        self._sleeper: Sleeper | None = None
        self._where = f"capture set {set_name}, {label(url)}"
        self._freed_below = 0
        self._freed_to = Scn(-1)

    def open(self) -> None:
        """Open the sessions now, so that the first calls need not wait for them."""
        with speaking("read the change log", self._url):
            self._sql()
            self._arrow()

    def join(self, history: History) -> Joined:
        """Make sure that a process goes on with the history it has followed, and have the log kept for it.

        Raises:
            OperatorError: The log is of another history, or does not hold what follows (any more).
        """
        with speaking("join the change log", self._url):
            while True:
                facts = read_facts(self._sql(), self._set_name, self._ticks, history)
                found = joined(history, facts, where=self._where)
                if register(self._sql(), self._set_name, history.consumer, found.position, found.anchor):
                    self._page = None
                    return found

    def hold_against(self, history: History) -> None:
        """Make sure that a process's history is that of the log; otherwise raise as `join` does."""
        with speaking("read the change log", self._url):
            joined(history, read_facts(self._sql(), self._set_name, self._ticks, history), where=self._where)

    def keep_for(self, consumer: Consumer, position: Scn) -> None:
        """Have the log kept for a consumer from a position on.

        Raises:
            OperatorError: What follows the position was freed.
        """
        with speaking("join the change log", self._url):
            while not register(self._sql(), self._set_name, consumer, position, self.anchor_of(position)):
                pass

    def next_slice(
        self, after: Scn, limit: Limit, *, until: Scn | None = None, anchor: Anchor | None = None
    ) -> QueueSlice | None:
        """Return the transactions that follow `after`, as many as `limit` allows; None when there are none yet.

        The log is cut here if it has not been cut behind `after` yet. With `until` it is only read up to that
        position, which an earlier slice ended at. A slice without transactions only moves the position.

        Args:
            anchor: The last cut at or before `after`, as it was known when `after` was reached.

        Raises:
            OperatorError: The log does not hold what follows `after` (any more), or `anchor` is not its cut.
            RetryableError: The source cannot be reached.
        """
        if until is not None and after >= until:
            return None
        page = self._page
        if page is None or not page.has_next(after):
            with speaking("read the change log", self._url):
                page = self._find_page(after, anchor, may_cut=until is None)
                if page is None:
                    return None
                page = page.of(self._origins)
                self._page = page = page.without_empty()
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
        return self.tick_at(lambda: Snapshot.current(self._sql())).scn

    def tick_at(self, take: Callable[[], Snapshot]) -> Anchor:
        """Cut the log at the snapshot that `take` takes when called, in whichever session it likes.

        `take` is called again when another session has cut the log in the meantime.
        """
        with speaking("cut the change log", self._url):
            tick = None
            while tick is None:
                last = self._ticks.last()
                tick = self._ticks.add(last, take())
            return tick.anchor

    def earliest(self) -> Anchor:
        """Return the earliest position that can still be read from."""
        with speaking("read the change log", self._url):
            return self._ticks.first().anchor

    def anchor_of(self, position: Scn) -> Anchor:
        """Return the last cut at or before a position.

        Raises:
            OperatorError: It was freed.
        """
        with speaking("read the change log", self._url):
            tick = self._ticks.at_or_before(position)
            if tick is None:
                raise freed(position, where=self._where)
            return tick.anchor

    def read(self, part: QueueSlice) -> Iterator[pa.RecordBatch]:
        """Yield the log rows of a slice (`decode.LOG_SCHEMA`), with rows of other transactions in between."""
        # A session that was lost may be opened anew on a server with another history, which has no such cut: no row
        # comes then, and the decoder misses them.
        is_same = (
            ""
            if part.cut is None
            else f" AND EXISTS (SELECT FROM {self._set}.tick WHERE scn = {part.cut.scn}"
            f" AND mark = {literal(part.cut.mark)})"
        )
        is_same += "".join(f" AND op <> '{op}'" for op in self._left_out)
        for low, high in _ranges(part.txn_ids):
            stored = self._stream(
                "SELECT xid::text::bigint AS txn_id, seq, relid::bigint, version, op::text, before, after"
                f" FROM {self._set}.log WHERE xid >= '{low}'::xid8 AND xid <= '{high}'::xid8{is_same}"
                " ORDER BY log.xid, seq"
            )
            for batch in stored:
                yield change_by_change(batch)

    def tables(self) -> list[TableVersion]:
        """Return every version of every captured table, oldest first."""
        with speaking("read the captured tables", self._url):
            rows = self._sql().execute(
                "SELECT c.relid::bigint, c.version, c.definition, r.definition ->> 'schema', r.definition ->> 'name',"
                " c.mode = 'detached' AND c.root = c.relid"
                f" FROM {self._set}.captured c LEFT JOIN LATERAL (SELECT definition FROM {self._set}.captured r"
                " WHERE r.relid = c.root ORDER BY r.version DESC LIMIT 1) r ON c.root <> c.relid"
                " ORDER BY c.relid, c.version"
            )
            found = []
            for relid, version, stored, root_schema, root_name, is_gone in rows:
                definition = with_logical(stored)
                table = TableSchema.from_definition(definition, version=version)
                root = TableName(root_schema, root_name) if root_name else table.name
                found.append(TableVersion(relid, table, definition, root, is_gone=is_gone))
            return found

    def count_tables(self) -> int:
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
            if extra and max(extra) - start.scn > len(ids):
                raise RetryableError("the change log was freed in the meantime", where=label(self._url))
            return Cut(start.snapshot, [int(ids[scn - start.scn - 1]) for scn in extra])

    def free(self, upto: Scn, consumer: str) -> int:
        """Note that a consumer needs nothing at or before `upto`, and delete what no consumer needs any more.

        Only whole intervals are freed, so that ranks in an interval that is half read stay what they are.

        Returns:
            The number of log rows deleted.

        Raises:
            OperatorError: The consumer was removed.
        """
        with speaking("free the change log", self._url):
            session = self._sql()
            own, others = places(session, self._set_name, consumer)
            tick = None if own is None else self._ticks.at_or_before(upto if others is None else min(upto, others))
            if tick is None or tick.scn <= self._freed_to:
                if not move(session, self._set_name, consumer, upto):
                    raise OperatorError(
                        "this process was removed from those that the change log is kept for",
                        where=self._where,
                        do="run it again: it goes on if nothing it needs was freed",
                    )
                return 0
            cut = tick.snapshot
            is_over = (
                f"xid >= '{self._freed_below}'::xid8 AND xid < '{cut.xmax}'::xid8"
                f" AND pg_visible_in_snapshot(xid, {literal(cut.text)}::pg_snapshot)"
            )
            # A consumer may have joined since we looked, or this one been removed; neither while we hold the lock.
            is_needed = (
                f"(SELECT NOT bool_or(id = {literal(consumer)}) OR min(scn) < {tick.scn} FROM {self._set}.consumer)"
            )
            # In one transaction: a reader that still finds a tick must find all of the log behind it.
            _, _, freed_rows, _, freed_ticks = at_once(
                session,
                f"LOCK TABLE {self._set}.consumer IN SHARE ROW EXCLUSIVE MODE",
                moving(self._set_name, consumer, upto),
                f"DELETE FROM {self._set}.log WHERE {is_over} AND NOT {is_needed}",
                f"DELETE FROM {self._set}.marker WHERE {is_over} AND NOT {is_needed}",
                f"DELETE FROM {self._set}.tick WHERE scn < {tick.scn} AND NOT {is_needed}",
            )
            if freed_ticks or self._ticks.first().scn == tick.scn:
                # All of it is gone: the next call need not look there again.
                self._freed_below, self._freed_to = cut.xmin, tick.scn
        return freed_rows

    def seen(self, consumer: str) -> None:
        """Note that a consumer is there, though there is nothing for it."""
        with speaking("write to the change log", self._url):
            touch(self._sql(), self._set_name, consumer)

    def consumers(self) -> Sequence[ConsumerState]:
        """Return the consumers that the log is kept for, and what each holds back, the furthest behind first."""
        with speaking("read the change log", self._url):
            return consumers(self._sql(), self._set_name)

    def backlog(self, after: Scn) -> Backlog:
        """Count what waits behind a position; may count changes that were delivered since the last whole interval."""
        with speaking("read the change log", self._url):
            tick = self._ticks.at_or_before(after)
            row = (
                self._sql()
                .execute(
                    f"SELECT coalesce(sum(changes), 0)::bigint, min(at), pg_total_relation_size('{self._set}.log')"
                    # What is below xmin is visible: the index leaves it out.
                    f" FROM {self._set}.log, pg_snapshot_xmin(%(s)s::pg_snapshot) low"
                    " WHERE xid >= low AND NOT pg_visible_in_snapshot(xid, %(s)s::pg_snapshot)",
                    {"s": tick.snapshot.text if tick else "1:1:"},
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

    def _find_page(self, after: Scn, anchor: Anchor | None, *, may_cut: bool) -> QueueSlice | None:
        start = self._ticks.at_or_before(after)
        end = self._ticks.behind(after)
        if anchor is not None and (start is None or start.anchor != anchor):
            last = self._ticks.last()
            raise (
                older(anchor, last.anchor, where=self._where)
                if start is not None and not self._ticks.has(anchor)
                else freed(after, where=self._where)
            )
        if start is None or (end is None and start.scn != after):
            raise freed(after, where=self._where)
        if end is not None:
            page = self._read_page(start, end.snapshot, end.scn, skip=after - start.scn)
            return replace(page, cut=end.anchor)
        return self._cut_page(start) if may_cut else None

    def _cut_page(self, last: Tick) -> QueueSlice | None:
        """List what was committed since the last tick, and cut behind it; None when that is nothing."""
        snapshot = Snapshot.current(self._sql())
        page = self._read_page(last, snapshot, last.scn, skip=0)
        if len(page) == 0:
            return None
        tick = self._ticks.add(last, snapshot)
        if tick is None:
            # Another session has cut in between, and there is its tick.
            return self._find_page(last.scn, last.anchor, may_cut=False)
        return replace(page, end=page.end if len(page) == _PAGE else tick.scn, cut=tick.anchor)

    def _read_page(self, start: Tick, upto: Snapshot, end: Scn, *, skip: int) -> QueueSlice:
        """List the transactions between two snapshots in commit order, leaving out the first `skip`.

        Returns:
            At most a page of them, which ends at `end` unless it is full: then more may follow.
        """
        # DDL and messages count as no change in the log, since most readers leave them out.
        also = "".join(f" + count(*) FILTER (WHERE op = '{op}')" for op in self._also)
        changes, ddl = f"sum(changes){also}", "bool_or(op = 'A')" if self._with_ddl else "NULL::bool"
        ranked = (
            f"SELECT xid, ({changes})::bigint AS changes, {ddl} AS has_ddl, max(seq) AS last_seq, max(at) AS at,"
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
            "SELECT xid::text::bigint AS txn_id, changes, size_bytes, at, greatest(last_seq, commit_seq) AS place, tag,"
            " has_ddl"
            " FROM ("
            f"{ranked} WHERE xid >= '{start.snapshot.xmax}'::xid8 AND {is_seen} GROUP BY xid"
            f" UNION ALL {ranked} WHERE xid = ANY ('{{{running}}}'::xid8[]) AND {is_seen} GROUP BY xid"
            f") t LEFT JOIN (SELECT * FROM {self._set}.marker WHERE xid >= '{oldest}'::xid8) m USING (xid)"
            f"{by_place}",
            doing="read the change log",
        )
        order = np.argsort(found["place"].to_numpy(), kind="stable")[0 if by_place else skip :]
        after = Scn(start.scn + skip)
        tags = found["tag"].combine_chunks().dictionary_encode()
        commit_scns = np.arange(after + 1, after + 1 + len(order))
        has_ddl = np.asarray(found["has_ddl"].fill_null(False).to_numpy(), bool)[order]
        return QueueSlice(
            after=after,
            end=end if len(order) < _PAGE else Scn(after + len(order)),
            commit_scns=commit_scns,
            txn_ids=found["txn_id"].to_numpy()[order],
            tag_codes=tags.indices.fill_null(-1).to_numpy()[order],
            tags=tuple(tags.dictionary.to_pylist()),
            changes=found["changes"].to_numpy()[order],
            size_bytes=found["size_bytes"].to_numpy()[order],
            committed_at_us=found["at"].cast(pa.int64()).to_numpy()[order],
            ddl_scns=frozenset(commit_scns[has_ddl].tolist()),
            start=start.anchor,
        )

    def _sql(self) -> Connection:
        if self._session is None or self._session.closed:
            session = connect(self._url, f"penstock {self._set_name} log")
            try:
                refuse_foreign(session, self._set_name)
                refuse_newer(session, self._set_name)
            except PenstockError:
                session.close()
                raise
            self._session = session
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
