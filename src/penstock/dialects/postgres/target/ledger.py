"""The ledger of one apply process in a PostgreSQL target, as its driver reads and writes it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from penstock.apply.conflict_log import ConflictFilter, LoggedConflict
from penstock.apply.ddl_log import LoggedDdl
from penstock.apply.detail import Detail, QueuedCount
from penstock.apply.error_queue import ErrorEntry
from penstock.apply.ledger import ProcessState, ProcessStatus, QueueState, RunPlace, StopRequest
from penstock.apply.table_counts import TableCounts, TableOp
from penstock.apply.target import Unfollowed
from penstock.change import TableName
from penstock.dialects.postgres.connection import Connection, label, speaking
from penstock.dialects.postgres.source.history import DATABASE_PLACE
from penstock.dialects.postgres.target import controls, ledger_version, run_lock
from penstock.dialects.postgres.target.blocked_keys import next_to_go_on
from penstock.dialects.postgres.target.conflict_log import read_conflicts, trim_conflicts
from penstock.dialects.postgres.target.copy_ledger import PostgresCopyLedger
from penstock.dialects.postgres.target.ddl_log import last_completed, read_ddl
from penstock.dialects.postgres.target.detail import detail, queued_counts
from penstock.dialects.postgres.target.error_entries import WaitingDdl
from penstock.dialects.postgres.target.error_queue import entries_behind
from penstock.dialects.postgres.target.lane_ledger import lane_application_name
from penstock.dialects.postgres.target.resync import (
    switch,
)
from penstock.dialects.postgres.target.table_changes import add_table_changes, table_changes
from penstock.errors import FencedError, OperatorError
from penstock.history import CaptureOrigin, Consumer, History, Joined
from penstock.origins import DEFAULT_TAG
from penstock.position import Anchor, Scn
from penstock.source_switch import SwitchPosition

_PAGE = 200


class PostgresLedger(PostgresCopyLedger):
    """The entries of one apply process, as its driver reads and writes them."""

    def __init__(self, url: str, process: str, tag: str | None = DEFAULT_TAG) -> None:
        """Use the ledger in the database at `url`; tables that are emptied are so under the origin mark `tag`."""
        super().__init__(url, process, tag)
        self._epoch = 0
        self._holder: run_lock.Session | None = None
        self._told: int | None = None
        """The last entry of the error queue that was reported."""
        self._told_ddl: int | None = None
        """The same of DDL."""
        self._looked_at: tuple[object, ...] | None = None
        """What the error queue held when it was found that nothing in it may go on."""

    def acquire(self, source: str, *, lanes: int, wait_s: float = 5) -> ProcessState:
        """Become the one run of this process: refuse to be a second one, and shut out what an earlier one left.

        Raises:
            OperatorError: Another run of the process is alive, it is fed by another source, or the ledger is of
            another version.
        """
        connection = self._sql()
        with speaking("start the apply process", self._url):
            ledger_version.refuse_other_version(connection)
            if self._holder is not None:
                # The server may not have heard that this object has lost the session it held the lock in.
                run_lock.end(connection, self._holder)
            self._lock(connection, wait_s)
            self._end_lanes(connection)
            with connection.transaction():
                connection.execute(
                    "INSERT INTO penstock.process (name, source) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                    [self._process, source],
                )
                # An upgrade may have been under way. It locks this table, so from here on the version stays as it is.
                ledger_version.refuse_other_version(connection)
                row = connection.execute(
                    "UPDATE penstock.process SET epoch = epoch + 1, status = %s, status_at = now(),"
                    " error = NULL, reason = NULL WHERE name = %s RETURNING epoch, source",
                    [ProcessStatus.ENABLED, self._process],
                ).fetchone()
                assert row is not None
                self._epoch = row[0]
                if row[1] != source:
                    raise OperatorError(
                        f"apply process {self._process!r} is fed by source {row[1]!r}, not {source!r}",
                        where=label(self._url),
                        do="give the pipeline another name",
                    )
                # Waits for a writer of an earlier epoch that is just committing.
                connection.execute(
                    "INSERT INTO penstock.lane (process, lane, epoch, attempt)"
                    " SELECT %(process)s, generate_series(0, %(lanes)s - 1), %(epoch)s, -1"
                    " ON CONFLICT (process, lane) DO UPDATE SET epoch = excluded.epoch, attempt = -1",
                    {"process": self._process, "lanes": lanes, "epoch": self._epoch},
                )
                connection.execute(
                    "UPDATE penstock.lane SET epoch = %s WHERE process = %s AND lane >= %s",
                    [self._epoch, self._process, lanes],
                )
            if self._told is None:
                row = connection.execute(
                    "SELECT coalesce(max(e.id), 0) FROM penstock.error e JOIN penstock.process p ON p.name = e.process"
                    " WHERE p.name = %s AND e.commit_scn <= p.low_watermark",
                    [self._process],
                ).fetchone()
                assert row is not None
                self._told = row[0]
                self._told_ddl = last_completed(connection, self._process)
        state = self.state()
        assert state is not None
        return state

    def state(self) -> ProcessState | None:
        """Return where the process stands; None when it was never set up."""
        with speaking("read the ledger", self._url):
            cursor = self._sql().cursor(row_factory=dict_row)
            row = cursor.execute(
                "SELECT p.name, p.epoch, p.status, p.status_at, p.error, p.reason, p.low_watermark, p.consistent_at,"
                " greatest(p.high_watermark, (SELECT max(a.highest_scn) FROM penstock.applied a"
                " WHERE a.process = p.name)) AS high_watermark,"
                " coalesce(sum(l.transactions), 0)::bigint AS transactions,"
                " coalesce(sum(l.changes), 0)::bigint AS changes,"
                " (SELECT count(*) FROM penstock.error e WHERE e.process = p.name AND NOT e.is_held) AS errors,"
                " (SELECT count(*) FROM penstock.error e WHERE e.process = p.name AND e.is_held) AS held,"
                " (SELECT count(*) FROM penstock.error e WHERE e.process = p.name AND e.on_hold_at IS NOT NULL)"
                "   AS on_hold,"
                " coalesce(sum(l.conflicts), 0)::bigint AS conflicts,"
                " coalesce(sum(l.resolved), 0)::bigint AS resolved,"
                " (SELECT count(*) FROM penstock.ddl d WHERE d.process = p.name AND d.outcome = 'applied') AS ddl"
                " FROM penstock.process p LEFT JOIN penstock.lane l ON l.process = p.name"
                " WHERE p.name = %s GROUP BY p.name",
                [self._process],
            ).fetchone()
            if row is None:
                return None
            return ProcessState(**row | {"status": ProcessStatus(row["status"])}, history=self._history())

    def consumer(self) -> Consumer:
        """What the source knows this process by; no id where the ledger does not know the process."""
        with speaking("read the ledger", self._url):
            connection = self._sql()
            id_ = ""
            if ledger_version.exists(connection):
                # Teardown asks ledgers of earlier versions, too, which have no such column.
                row = connection.execute(
                    "SELECT to_jsonb(p) ->> 'consumer' FROM penstock.process p WHERE name = %s", [self._process]
                ).fetchone()
                id_ = (row and row[0]) or ""
            place = connection.execute(DATABASE_PLACE).fetchone()
            assert place is not None
            return Consumer(id_, self._process, label(self._url), place[0])

    def adopt(self, found: Joined) -> ProcessState:
        """Write down which history the process follows from now on, and from where.

        Raises:
            FencedError: Another run has taken over.
        """
        with speaking("write the ledger", self._url):
            written = self._sql().execute(
                "UPDATE penstock.process SET set_id = %(set_id)s, set_place = %(place)s, anchor_scn = %(anchor)s,"
                " anchor_mark = %(mark)s, low_watermark = %(position)s,"
                " high_watermark = greatest(high_watermark, %(position)s)"
                " WHERE name = %(process)s AND epoch = %(epoch)s",
                {
                    "set_id": found.origin.set_id,
                    "place": found.origin.place,
                    "anchor": found.anchor.scn,
                    "mark": found.anchor.mark,
                    "position": found.position,
                    "process": self._process,
                    "epoch": self._epoch,
                },
            )
        if written.rowcount == 0:
            raise self._taken_over()
        state = self.state()
        assert state is not None
        return state

    def refuse_second(self) -> None:
        """Make sure, before anything is started, that no run of the process is alive.

        Raises:
            OperatorError: One is.
        """
        if self.is_running():
            raise self._running_already(self._sql())

    def is_running(self) -> bool:
        """Whether a run of the process is alive somewhere."""
        with speaking("read the ledger", self._url):
            return run_lock.is_taken(self._sql(), self._process)

    def run_place(self) -> RunPlace | None:
        """Where the run of the process is; None where there is none, or nobody can tell."""
        with speaking("read the ledger", self._url):
            return run_lock.place(self._sql(), self._process)

    def confirm(self) -> None:
        """Make sure that this is still the one run of the process.

        Raises:
            FencedError: Another run has taken over.
        """
        state = self.state()
        if state is None or state.epoch != self._epoch:
            raise self._taken_over()

    def complete(self, end: Scn, consistent_at: datetime | None, anchor: Anchor | None) -> None:
        """Move the low watermark to the end of a batch whose every transaction is applied.

        A restart goes on from there, whatever the kind of source; what a position means to it, its `join` knows.

        `anchor` is the source's last cut at or before that, where the source has cuts.

        Once this returns, what the apply servers have committed is on disk too, and the source may forget it.

        Raises:
            FencedError: Another run has taken over.
        """
        connection = self._sql()
        with speaking("write the ledger", self._url), connection.transaction():
            # The servers' commits do not wait for the disk; they come before this one in the log, which does (ADR 17).
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', true)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
            moved = connection.execute(
                "UPDATE penstock.process SET low_watermark = %(end)s,"
                " high_watermark = greatest(high_watermark, %(end)s), consistent_at = greatest(consistent_at, %(at)s),"
                " anchor_scn = coalesce(%(anchor)s, anchor_scn), anchor_mark = coalesce(%(mark)s, anchor_mark),"
                " applied_at = now() WHERE name = %(process)s AND epoch = %(epoch)s AND low_watermark <= %(end)s",
                {
                    "end": end,
                    "at": consistent_at,
                    "anchor": anchor.scn if anchor is not None else None,
                    "mark": anchor.mark if anchor is not None else None,
                    "process": self._process,
                    "epoch": self._epoch,
                },
            )
            if moved.rowcount == 0:
                raise self._taken_over()
            connection.execute(
                "DELETE FROM penstock.applied WHERE process = %s AND highest_scn <= %s", [self._process, end]
            )

    def count(self, tables: TableCounts) -> None:
        """Add what was applied to the counters by table and operation; does not wait for the disk."""
        with speaking("write the ledger", self._url):
            add_table_changes(self._sql(), self._process, tables)

    def note_idle(self, consistent_at: datetime) -> None:
        """Write down that nothing waited at the source at this time."""
        with speaking("write the ledger", self._url):
            self._sql().execute(
                "UPDATE penstock.process SET consistent_at = %s WHERE name = %s AND epoch = %s",
                [consistent_at, self._process, self._epoch],
            )

    def set_status(self, status: ProcessStatus, reason: str, error: str | None = None) -> None:
        """Write down that the process stopped, and why; `error` is the one that it was to stop at."""
        with speaking("write the ledger", self._url):
            self._sql().execute(
                "UPDATE penstock.process SET status = %s, status_at = now(), reason = %s, error = %s"
                " WHERE name = %s AND epoch = %s",
                [status, reason, error, self._process, self._epoch],
            )

    def newly_queued(self) -> Sequence[ErrorEntry]:
        """Return the next of the transactions that went to the error queue since the last call, at most a page.

        The first call begins behind those that an earlier run has completed.
        """
        with speaking("read the error queue", self._url):
            found = entries_behind(self._sql(), self._process, self._told or 0, _PAGE)
            if found:
                self._told = found[-1][0]
            return [entry for _, entry in found]

    def newly_altered(self) -> Sequence[LoggedDdl]:
        """Return the next DDL that was carried out, or left out, since the last call, at most a page.

        The first call begins behind that which an earlier run has completed.
        """
        with speaking("read the ledger", self._url):
            found = read_ddl(self._sql(), self._process, self._told_ddl or 0, _PAGE)
            if found:
                self._told_ddl = found[-1][0]
            return [one for _, one in found]

    def unfollowed(self) -> Mapping[TableName, tuple[Unfollowed, ...]]:
        """Return the alterations that wait in the error queue, after which names mean other columns, by table."""
        with speaking("read the error queue", self._url):
            return WaitingDdl(self._sql(), self._process).unfollowed()

    def queue_state(self) -> QueueState:
        """Return what the error queue holds."""
        with speaking("read the error queue", self._url):
            connection = self._sql()
            row = connection.execute(
                "SELECT count(*) FILTER (WHERE NOT is_held), count(*) FILTER (WHERE is_held), coalesce(sum(id), 0),"
                " count(*) FILTER (WHERE on_hold_at IS NOT NULL)"
                " FROM penstock.error WHERE process = %s",
                [self._process],
            ).fetchone()
            assert row is not None
            failed, held, _, _ = row
            # To look through all that wait takes a while; unless an entry has come, gone or been released, nothing is
            # new.
            is_new, self._looked_at = row != self._looked_at, row
            may_go_on = bool(held and is_new and next_to_go_on(connection, self._process, (-1, 0)))
            if may_go_on:
                self._looked_at = None
            return QueueState(failed, held, may_go_on)

    def parameters(self) -> Mapping[str, str]:
        """Return the texts of the parameters that were set, by name."""
        with speaking("read the ledger", self._url):
            return controls.parameters(self._sql(), self._process)

    def note_settings(self, shown: Mapping[str, Any]) -> None:
        """Write down what the file of this run says, for the views and for `detail`."""
        with speaking("write the ledger", self._url):
            self._sql().execute(
                "UPDATE penstock.process SET settings = %s WHERE name = %s", [Jsonb(dict(shown)), self._process]
            )

    def conflicts(self, wanted: ConflictFilter) -> Sequence[LoggedConflict]:
        """Return entries of the conflict log, the newest first."""
        with speaking("read the conflict log", self._url):
            return read_conflicts(self._sql(), self._process, wanted)

    def trim_conflicts(self, keep: timedelta) -> None:
        """Delete what was resolved longer ago."""
        with speaking("trim the conflict log", self._url):
            trim_conflicts(self._sql(), self._process, keep)

    def detail(self) -> Detail:
        """Return what the ledger tells beyond `state`."""
        with speaking("read the ledger", self._url):
            return detail(self._sql(), self._process)

    def table_changes(self) -> Mapping[TableOp, int]:
        """Return how many changes runs have applied, by table and operation."""
        with speaking("read the ledger", self._url):
            return table_changes(self._sql(), self._process)

    def queued_counts(self, most: int) -> Sequence[QueuedCount]:
        """Count the error queue by table, error and state; the `most` frequent ones."""
        with speaking("read the error queue", self._url):
            return queued_counts(self._sql(), self._process, most)

    def set_parameter(self, name: str, value: str | None) -> None:
        """Keep the text of a parameter; None forgets it."""
        with speaking("write the ledger", self._url):
            controls.set_parameter(self._sql(), self._process, name, value)

    def ask_to_stop(self, request: StopRequest | None) -> None:
        """Ask the run of the process to stop; None takes it back."""
        with speaking("write the ledger", self._url):
            controls.ask_to_stop(self._sql(), self._process, request)

    def stop_request(self) -> StopRequest | None:
        """Return how the run is asked to stop, if it is."""
        with speaking("read the ledger", self._url):
            return controls.stop_request(self._sql(), self._process)

    def set_status_of_cut_run(self, reason: str) -> None:
        """Write down that the last run was cut short, and end what is left of its sessions, which hold locks."""
        if self.is_running():
            return
        with speaking("write the ledger", self._url):
            self._end_lanes(self._sql())
        self.set_status_of_last_run(reason)

    def set_status_of_last_run(self, reason: str, *, is_aborted: bool = False) -> None:
        """Write down why the last run stopped, unless one is alive: then it was not this one that counts.

        Args:
            is_aborted: It stopped at what keeps any run from working, such as a handler that cannot be had.
        """
        if self.is_running():
            return
        with speaking("write the ledger", self._url):
            self._sql().execute(
                "UPDATE penstock.process SET status = CASE WHEN %s THEN %s WHEN status = %s THEN %s ELSE status END,"
                " error = CASE WHEN %s THEN NULL ELSE error END, status_at = now(), reason = %s WHERE name = %s",
                [
                    is_aborted,
                    ProcessStatus.ABORTED,
                    ProcessStatus.ENABLED,
                    ProcessStatus.DISABLED,
                    is_aborted,
                    reason,
                    self._process,
                ],
            )

    def switch(self, source: str, found: SwitchPosition) -> None:
        """Follow another source of the same database from now on; see `pipeline.connectors.TargetLedger.switch`.

        Raises:
            FencedError: Another run has taken over.
        """
        with speaking("write the ledger", self._url), self._sql().transaction():
            self.confirm()
            switch(self._sql(), self._process, source, found)

    def _history(self) -> History:
        consumer = self.consumer()
        row = (
            self._sql()
            .execute(
                "SELECT set_id, set_place, low_watermark, anchor_scn, anchor_mark,"
                " low_watermark = 0 AND NOT EXISTS (SELECT FROM penstock.instantiation i WHERE i.process = p.name)"
                " FROM penstock.process p WHERE name = %s",
                [self._process],
            )
            .fetchone()
        )
        assert row is not None
        set_id, place, position, scn, mark, is_new = row
        newest = (
            self._sql()
            .execute(
                "SELECT scn, mark FROM (SELECT anchor_scn AS scn, anchor_mark AS mark, name AS process"
                " FROM penstock.process UNION ALL SELECT cut_scn, cut_mark, process FROM penstock.lane"
                " UNION ALL SELECT scn, mark, process FROM penstock.instantiation) t"
                " WHERE process = %s AND mark IS NOT NULL ORDER BY scn DESC LIMIT 1",
                [self._process],
            )
            .fetchone()
        )
        copies = self._sql().execute(
            "SELECT DISTINCT scn, mark FROM penstock.instantiation WHERE process = %s AND mark IS NOT NULL",
            [self._process],
        )
        return History(
            consumer=consumer,
            origin=None if set_id is None else CaptureOrigin(set_id, place),
            position=Scn(position),
            anchor=None if mark is None else Anchor(Scn(scn), mark),
            newest=None if newest is None else Anchor(Scn(newest[0]), newest[1]),
            is_new=is_new,
            copies=[Anchor(Scn(at), of) for at, of in copies.fetchall()],
        )

    def _end_lanes(self, connection: Connection) -> None:
        """End the sessions of apply servers: of one whose program was ended a server may notice only much later."""
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
            " AND usename = current_user AND datname = current_database()",
            [lane_application_name(self._process)],
        )

    def _lock(self, connection: Connection, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            session = run_lock.take(connection, self._process)
            if session is not None:
                self._holder = session
                return
            if time.monotonic() > deadline:
                raise self._running_already(connection)
            time.sleep(0.2)

    def _taken_over(self) -> FencedError:
        return FencedError(f"another run of process {self._process!r} has taken over", where=label(self._url))

    def _running_already(self, connection: Connection) -> OperatorError:
        return OperatorError(
            f"apply process {self._process!r} is running already{run_lock.holder(connection, self._process)}",
            where=label(self._url),
            do="stop the other `penstock run` first, or end that session if it is not Penstock's; or give this"
            " pipeline another name",
        )
