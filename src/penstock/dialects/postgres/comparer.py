"""Comparing ranges of tables in two PostgreSQL databases, and bringing what differs, while changes flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from penstock.apply.conflicts import UNIQUE_VIOLATED, ApplyError, SpeculationError
from penstock.change import TableName
from penstock.dialects.postgres.arrow import ArrowReader
from penstock.dialects.postgres.bring import bring
from penstock.dialects.postgres.connection import label, literal, quote, speaking
from penstock.dialects.postgres.ranges import Look, Origin, Readers, look, origin_as_of
from penstock.dialects.postgres.source.as_of import is_of
from penstock.dialects.postgres.source.change_log import ChangeLog
from penstock.dialects.postgres.source.snapshots import Cut
from penstock.dialects.postgres.target.error_queue import note_held
from penstock.dialects.postgres.target.ledger_entries import LOCK_LANES, applied_query, copied_query
from penstock.dialects.postgres.target.session import PostgresSession
from penstock.errors import OperatorError, RetryableError
from penstock.position import Scn
from penstock.snapshot.chunk import Range
from penstock.verify.compare import MOST_KEYS, RangeResult, not_copied

_PATIENCE_MS = 2_000
"""How long a repair may wait for another session's lock, while apply waits for the repair."""

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


@dataclass(frozen=True)
class PostgresComparer:
    """Implements `verify.compare.RangeComparer` between two PostgreSQL databases."""

    source_url: str = field(repr=False)
    set_name: str
    target_url: str = field(repr=False)
    process: str

    def compare(self, ranges: Sequence[Range]) -> list[RangeResult]:
        """Compare the rows of ranges, at what the target says is applied; all of them at one position."""
        with self._reading("verify") as readers:
            readers.target.execute(_BEGIN)
            cuts = self._cuts(readers)
            return [self._compare(readers, compared, cuts) for compared in ranges]

    def repair(self, compared: Range) -> RangeResult:
        """Bring the rows of a range that differ to what they are at the source; see `RangeComparer.repair`."""
        session = PostgresSession(self.target_url, f"penstock {self.process} repair")
        with closing(session), self._reading("repair", lock_timeout=f"{_PATIENCE_MS}ms") as readers:
            try:
                return self._bring(session, readers, compared)
            except (ApplyError, SpeculationError) as exc:
                if isinstance(exc, ApplyError) and exc.number == UNIQUE_VIOLATED and compared.chunk.is_bounded:
                    # Rows of two ranges have exchanged a unique value: they can only go together.
                    return self.repair(replace(compared, chunk=replace(compared.chunk, after=None, upto=None)))
                raise OperatorError(
                    f"cannot bring rows of table {compared.target.name}: {exc.what}",
                    where=label(self.target_url),
                    do="nothing of this range was changed; have the target take what the source holds (a constraint, a"
                    " trigger or a rule of its own may keep it away), and try again",
                ) from exc

    def _bring(self, session: PostgresSession, readers: Readers, compared: Range) -> RangeResult:
        with session.transaction(), speaking("write the ledger", self.target_url):
            # Every transaction of an apply server begins by writing its row: none is under way now, and none begins.
            session.connection.execute(LOCK_LANES, [self.process])
            # They wait for us from here on, so we do not wait for others.
            session.connection.execute(f"SET LOCAL lock_timeout = {_PATIENCE_MS}")
            cuts = self._cuts(readers)
            found = bring(session, readers, compared, self._origin(readers, compared, cuts))
            if compared.shape.primary_key is None:
                note_held(session.connection, self.process, compared.target.name)
            return _result(found)

    def _compare(self, readers: Readers, compared: Range, cuts: Mapping[TableName, Cut]) -> RangeResult:
        return _result(look(readers, compared, self._origin(readers, compared, cuts)))

    def _origin(self, readers: Readers, compared: Range, cuts: Mapping[TableName, Cut]) -> Origin:
        # The ledger knows tables as the target does.
        cut = cuts.get(compared.target.name)
        if cut is None:
            raise not_copied([compared.target.name])
        self._check(readers.source, compared.source.name, cut)
        return origin_as_of(compared.source, self.set_name, cut)

    @contextmanager
    def _reading(self, name: str, **settings: str) -> Iterator[Readers]:
        """Open a session in each database."""
        name = f"penstock {self.process} {name}"
        at_target = ArrowReader(self.target_url, name, {"enable_nestloop": "off", "work_mem": "64MB", **settings})
        try:
            at_source = ArrowReader(self.source_url, name, settings)
            try:
                yield Readers(at_source, at_target)
            finally:
                at_source.close()
        finally:
            at_target.close()

    def _cuts(self, readers: Readers) -> Mapping[TableName, Cut]:
        """Return the cut at which each copied table stands, and begin a snapshot of the source, which is later.

        A table stands at what is applied, or at its copy's cut where that is later.
        """
        doing = "read the ledger"
        low, *applied = readers.target.table(applied_query(self.process), doing=doing)["scn"].to_pylist()
        copied = readers.target.table(copied_query(self.process, low), doing=doing).to_pylist()
        with closing(ChangeLog(self.source_url, self.set_name)) as log:
            cuts = {
                scn: log.cut(Scn(scn), [Scn(other) for other in applied if other > scn])
                for scn in {row["scn"] for row in copied}
            }
        readers.source.execute(_BEGIN)
        return {TableName(row["schema_name"], row["table_name"]): cuts[row["scn"]] for row in copied}

    def _check(self, at_source: ArrowReader, table: TableName, cut: Cut) -> None:
        """Make sure that the session's snapshot holds all of the log behind the cut, and no truncate of the table."""
        log, captured, ticks = (f"{quote(self.set_name)}.{name}" for name in ("log", "captured", "tick"))
        is_ours = is_of(table, self.set_name)
        family = f"SELECT relid FROM {captured} WHERE root IN (SELECT root FROM {captured} WHERE {is_ours})"
        newest = f"SELECT max(version) FROM {captured} c WHERE c.relid = l.relid"
        row = at_source.table(
            f"SELECT EXISTS (SELECT FROM {ticks} WHERE snapshot::text = {literal(cut.snapshot.text)}) AS is_kept,"
            f" EXISTS (SELECT FROM {log} WHERE op = 'T' AND {cut.since()} AND relid IN ({family})) AS is_emptied,"
            f" EXISTS (SELECT FROM {log} WHERE op = '!' AND {cut.since()} AND relid IN ({family})) AS has_gap,"
            f" EXISTS (SELECT FROM {log} l WHERE {is_ours} AND {cut.since()} AND version < ({newest})) AS is_altered",
            doing="read the change log",
        ).to_pylist()[0]
        if not row["is_kept"]:
            raise RetryableError("the change log was freed while it was compared", do="verify again in a moment")
        done = [
            what
            for name, what in (
                ("is_emptied", "truncated"),
                ("has_gap", "changed in a way that is not captured"),
                ("is_altered", "altered"),
            )
            if row[name]
        ]
        if done:
            raise RetryableError(
                f"changes from before table {table} was {done[0]} are not applied yet",
                do="let `penstock run` apply them, then verify again",
            )


def _result(found: Look) -> RangeResult:
    return RangeResult(found.chunk, found.rows, found.differing, found.differences[:MOST_KEYS])
