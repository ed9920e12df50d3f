"""Feeding an apply process from a source, by Spark jobs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from penstock.apply.dependency_keys import fingerprint
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.ledger import ProcessState
from penstock.apply.process import ReleasedTransaction, TablesAddedError
from penstock.apply.target import TargetCatalog, TargetTable
from penstock.apply.task import TaskContext
from penstock.change import TableName
from penstock.events import Event, tell
from penstock.history import History, Joined
from penstock.pipeline.apply_run import ApplyRun
from penstock.pipeline.left_out import LeftOut
from penstock.pipeline.names_to_come import names_to_come
from penstock.pipeline.not_followed import not_followed
from penstock.position import Anchor, Limit, Scn
from penstock.schema import Dictionary, TableSchema
from penstock.spark.job import BatchJobs
from penstock.spark.starting import Spark
from penstock.stream import Slice, Source, TableVersion, roots
from penstock.text import printable

_CATALOG_AGE_S = 30.0
"""How long the catalogues are trusted while nothing looks wrong."""

_SEEN_EVERY_S = 60.0
"""How often an idle source is told that its consumer is alive."""


class SourceFeed:
    """The half of a feed that follows the source; a subclass says what becomes of the changes.

    Together they implement `apply.process.Feed`.
    """

    def __init__(
        self,
        open_source: Callable[[], Source],
        *,
        follow_source: Callable[[], None],
        is_meant: Callable[[TableName], bool],
        save_dictionary: Callable[[Sequence[TableVersion]], None],
        left_out: LeftOut,
        reached: Callable[[Scn], Scn | None] = lambda _: None,
        until: Scn | None = None,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            left_out: Tables whose changes are passed over.
            follow_source: Brings the capture up to date after DDL; raises where the user has to act first.
            is_meant: Whether the pipeline is about a table; the set may serve other pipelines too.
            save_dictionary: Keeps table versions in the ledger.
            reached: Raises TablesAddedError where tables are to be copied at a position before changes follow; returns
                the next such position, if one is known: a batch ends there.
            until: No batch goes beyond this position.
        """
        self._source = open_source()
        self._freer = _Freer(open_source)
        self._follow_source = follow_source
        self._is_meant = is_meant
        self._left_out = left_out
        self._save_dictionary = save_dictionary
        self._reached = reached
        self._until = until
        self._known: set[TableName] = set()
        self._versions: Sequence[TableVersion] = ()
        self._read_at = -math.inf
        self._consumer = ""
        self._anchor: Anchor | None = None
        self._seen_at = 0.0

    @property
    def is_gathering(self) -> bool:
        """Whether changes are left to gather; they are dealt with at once where a subclass does not say so."""
        return False

    def apply(self, part: Slice, lanes: int) -> Sequence[LaneResult]:
        """Deal with a slice, with up-to-date definitions."""
        raise NotImplementedError

    def join(self, history: History) -> Joined:
        """Make sure that the source is of the history that the process has followed, and have it kept."""
        found = self._source.join(history)
        self._consumer, self._anchor = history.consumer.id, found.anchor
        return found

    def next_batch(self, after: Scn, limit: Limit) -> Slice | None:
        """Return the transactions that follow `after`; None when there are none yet."""
        if self._left_out.is_due:
            raise TablesAddedError("tables that could not be copied are tried again")
        part = self._source.next_slice(after, limit, until=self._until, anchor=self._anchor)
        # Only after the cut: the slice is compared with what the source held when it was cut.
        next_copy = self._reached(after)
        if part is None:
            return None
        for end in (limit.until, next_copy):
            if end is not None and part.end > end:
                # Asked to end there itself, a source may not look whether there is more than it has seen.
                part = part.take(after, limit, end)
        # What altered a table is applied alone: everything before it was applied to the table as it was, and what
        # follows meets it as it is then.
        part = part.until_ddl()
        # Set before the batch is applied: any failure leads to another `join`, which sets it anew.
        self._anchor = part.anchor
        return part

    def look_around(self) -> None:
        """Take up partitions that were added; raises TablesAddedError if tables were."""
        if time.monotonic() - self._seen_at > _SEEN_EVERY_S:
            self._seen_at = time.monotonic()
            self._freer.do(lambda source: source.seen(self._consumer))
        if self._is_aged or self._source.count_tables() != len(self._versions):
            self._refresh()

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when the source may have something; when told to stop, or after the timeout, at the latest."""
        self._source.wait(stop, timeout_s)

    def tick(self) -> Scn:
        """Return a position that every transaction committed before the call lies at or before."""
        return self._source.tick()

    def reached(self, position: Scn) -> None:
        """Raise TablesAddedError where tables are to be copied at a position before changes follow."""
        self._reached(position)

    def free(self, upto: Scn) -> None:
        """Let the source forget in the background, as soon as the last freeing is done."""
        self._freer.do(lambda source: source.free(upto, self._consumer))

    def go_on(self) -> Sequence[ReleasedTransaction]:
        """Nothing waits where nothing is applied."""
        return []

    def close(self) -> None:
        """Close the sessions with the source."""
        self._source.close()
        self._freer.close()

    @property
    def _is_aged(self) -> bool:
        return time.monotonic() - self._read_at > _CATALOG_AGE_S

    def _open(self, known: Collection[TableName]) -> None:
        """Begin anew with these tables; their partitions may change."""
        self._known, self._versions = set(known), ()
        self._read_at = -math.inf
        self._source.open()
        self._refresh()

    def _refresh(self) -> None:
        """Have tasks work with up-to-date definitions, by `_take_up`."""
        raise NotImplementedError

    def _take_up(self) -> bool:
        """Take up table versions that came since the last call; returns whether there were any.

        Raises:
            TablesAddedError: Some are of tables that are not known.
        """
        if self._is_aged:
            self._follow_source()
            self._read_at = time.monotonic()
        if self._source.count_tables() == len(self._versions):
            return False
        before, self._versions = self._versions, self._source.tables()
        if before:
            self._hear_of_versions(before, self._versions)
        self._save_dictionary(self._versions)
        self._known.update(self._names_to_come(self._versions))
        if not {name for name in roots(self._versions) if self._is_meant(name)} <= self._known:
            raise TablesAddedError("tables were added to the capture set; they are copied first")
        # A partition that is detached later is no new table.
        self._known |= {v.table.name for v in self._versions if v.root in self._known}
        return True

    def _hear_of_versions(self, before: Sequence[TableVersion], now: Sequence[TableVersion]) -> None:
        """Versions came while the run was at work."""

    def _names_to_come(self, versions: Sequence[TableVersion]) -> Collection[TableName]:
        """Names that known tables get by changes that are to come; none where nobody follows that."""
        return ()


class SparkFeed(SourceFeed):
    """Feeds what applies to a target."""

    def __init__(self, spark: Spark, run: ApplyRun) -> None:
        """Feed a run; nothing is opened yet."""
        super().__init__(
            run.open_source,
            follow_source=run.follow_source,
            is_meant=run.is_meant,
            save_dictionary=run.ledger.save_dictionary,
            left_out=run.left_out,
            reached=run.check_copies,
            until=run.until,
        )
        self._spark = spark
        self._run = run
        self._config = self._shared = ServerConfig()
        self._ddl = run.ends.apply.ddl_rules
        self._virtual = run.ends.apply.dependencies.virtual
        self._keys = run.ends.apply.keys
        self._jobs: BatchJobs | None = None
        self._catalog: TargetCatalog | None = None
        self._failed_tables: set[TableName] = set()
        self._is_lacking = self._was_altered = False
        self._marked_by: int | None = None

    @property
    def source(self) -> str:
        """The name of the source."""
        return self._run.ends.config.capture.name

    def start(self, state: ProcessState, known: Collection[TableName]) -> None:
        """Get ready to deliver batches to this run of the process, of `known` tables; their partitions may change."""
        self._jobs = BatchJobs(self._spark, process=state.name, epoch=state.epoch)
        self._catalog, self._marked_by = None, None
        self._open(known)
        self._jobs.warm_up()

    def use(self, config: ServerConfig) -> None:
        """Have apply servers work so from the next batch on."""
        self._config = config

    def go_on(self) -> Sequence[ReleasedTransaction]:
        """Apply what has waited behind entries of the error queue that are gone."""
        assert self._jobs is not None
        return self._jobs.go_on()

    def apply(self, part: Slice, lanes: int) -> Sequence[LaneResult]:
        """Apply a slice with up-to-date definitions of both sides."""
        assert self._jobs is not None
        self._is_lacking |= self._run.follow_parts()
        self._refresh()
        results = self._jobs.run(part, lanes=lanes)
        self._was_altered = part.has_ddl
        # Another session may have changed a table at the target.
        for result in results:
            self._failed_tables |= result.failed_tables
        if any(result.failure for result in results):
            self._read_at = -math.inf
        return results

    def _hear_of_versions(self, before: Sequence[TableVersion], now: Sequence[TableVersion]) -> None:
        for table, words in not_followed(before, now, self._ddl):
            text = f"{table}: {', '.join(words)} at the source; the target does not follow this"
            facts = {"table": str(table), "done": list(words), "txn_id": None, "is_loss": False}
            tell(Event.DDL_LEFT_OUT, printable(text), facts)

    def _names_to_come(self, versions: Sequence[TableVersion]) -> Collection[TableName]:
        return names_to_come(versions, self._run.ledger.instantiated(), self._ddl) if self._ddl.is_followed else ()

    def _refresh(self) -> None:
        assert self._jobs is not None
        is_aged = self._is_aged
        is_new = self._take_up()
        catalog = self._catalog
        # The user may just have added what the target lacks; the next change must not fail any more.
        if catalog is None or is_new or is_aged or self._is_lacking or self._was_altered:
            catalog = self._read_catalog()
        elif self._failed_tables:
            catalog = self._reread(catalog, self._failed_tables)
        self._failed_tables, self._was_altered = set(), False
        is_new = is_new or catalog != self._catalog or self._config != self._shared
        self._catalog, self._shared = catalog, self._config
        if is_new:
            dictionary = Dictionary(version.table for version in self._versions)
            follows = self._left_out.without(self._known, self._versions)
            followed = follows & roots(self._versions).keys()
            self._is_lacking = self._run.tell_lacking(
                followed, {name: table.schema for name, table in catalog.tables.items()}
            )
            source = self._run.ends.config.capture.name
            reader = self._run.ends.source.access.reader(source, self._versions, follows=follows)
            self._jobs.share(
                reader, TaskContext(self._run.ends.target.access, catalog, dictionary, self._config, self._keys)
            )
            if (
                self._config.hold_dependents
                and (keys := fingerprint(catalog.tables, catalog.virtual)) != self._marked_by
            ):
                self._jobs.mark_queue()
                self._marked_by = keys

    def _reread(self, catalog: TargetCatalog, names: Collection[TableName]) -> TargetCatalog:
        """Describe some tables anew: one that fails again and again is not to cost as much as all of them."""
        kept = {name: table for name, table in catalog.tables.items() if name not in names}
        found = self._run.ends.target.describe({v.table.name for v in self._versions} & self._known & set(names))
        return replace(catalog, tables=kept | self._target_tables(found)).with_keys(self._keys)

    def _target_tables(self, tables: Mapping[TableName, TableSchema]) -> dict[TableName, TargetTable]:
        waiting = self._run.ledger.unfollowed() if self._ddl.is_followed else {}
        # A partition is altered with its root.
        root_of = {version.table.name: version.root for version in self._versions}
        return {
            name: TargetTable(table, unfollowed=waiting.get(root_of.get(name, name), ()))
            for name, table in tables.items()
        }

    def _read_catalog(self) -> TargetCatalog:
        tables = self._run.ends.target.describe({v.table.name for v in self._versions if v.table.name in self._known})
        copied = self._run.ledger.instantiated()
        # A partition was copied with its root.
        instantiated = dict(copied) | {v.table.name: copied[v.root] for v in self._versions if v.root in copied}
        return TargetCatalog(
            tables=self._target_tables(tables),
            instantiated=instantiated,
            virtual=self._virtual,
        ).with_keys(self._keys)


class _Freer:
    """Lets the source free changes, on a thread of its own, one call at a time."""

    def __init__(self, open_source: Callable[[], Source]) -> None:
        self._source = open_source()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="free")
        self._running: Future[object] | None = None

    def do(self, work: Callable[[Source], object]) -> None:
        if self._running is not None:
            if not self._running.done():
                return
            # A failure to free is a failure of the source; the next batch would meet it too.
            self._running.result()
        self._running = self._thread.submit(work, self._source)

    def close(self) -> None:
        if self._running is not None:
            self._running.exception()
            self._running = None
        self._source.close()
