"""An archive of change files as a sink."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence

from penstock.apply.ledger import ProcessState
from penstock.apply.listener import CopyListener
from penstock.archive import Archive, ArchiveDefinitions
from penstock.change import TableName
from penstock.database import SetupStep
from penstock.errors import OperatorError, PenstockError, RetryableError, TableError
from penstock.formats.archive_log import DataFile
from penstock.formats.change_file import Encoding
from penstock.history import Consumer, HistoryWording
from penstock.pipeline.connectors import RunLock
from penstock.pipeline.sink import Copying, FeedSettings, Sink, SinkLedger, cut_apart
from penstock.sinks.archive.feed import ArchiveFeed
from penstock.sinks.archive.files import FileWriter, check_writable, make_archive, refuse_other
from penstock.sinks.archive.jobs import PublishCopyJobs
from penstock.sinks.archive.ledger import ArchiveLedger, Copy, consumer_of, state_of
from penstock.sinks.archive.task import CopyTask
from penstock.snapshot.chunk import CopySource, bundles
from penstock.snapshot.instantiate import Work, without
from penstock.spark.starting import Spark
from penstock.storage import MissingFileError, Storage


class ArchiveSink:
    """Implements `sink.Sink`."""

    def __init__(self, name: str, storage: Storage, encoding: Encoding, *, max_age_s: float) -> None:
        """Publish the pipeline `name` to a folder; nothing is touched yet."""
        self._name = name
        self._storage = storage
        self._encoding = encoding
        self._max_age_s = max_age_s

    @property
    def label(self) -> str:
        """The folder."""
        return self._storage.label

    @property
    def words(self) -> HistoryWording:
        """How messages speak of an archive."""
        return HistoryWording(
            noun="archive",
            other="give publish.path another folder",
            anew="`penstock teardown`, then `penstock setup` with another publish.path, begins with a new first copy",
            shown=f"`penstock changes {self.label}` shows what it has published",
        )

    def is_made(self) -> bool:
        """Whether there is an archive."""
        try:
            _ = self._archive.header
        except OperatorError as exc:
            if isinstance(exc.__cause__, MissingFileError):
                return False
            raise
        return True

    def faults(self, source: str, tables: Sequence[TableName]) -> list[PenstockError]:
        """What keeps an archive from being made, or written to."""
        try:
            check_writable(self._storage)
            if self.is_made():
                refuse_other(self._archive.header, source, self._encoding, self.label)
                self.process()
        except RetryableError:
            raise
        except PenstockError as exc:
            return [exc]
        return []

    def steps(self, tables: Sequence[TableName]) -> Sequence[SetupStep]:
        """A step where there is no archive."""
        if self.is_made():
            return []
        return [SetupStep("an archive of change files", "-- a folder, which `penstock setup` makes")]

    def make(self, source: str, tables: Sequence[TableName]) -> None:
        """Make the archive."""
        make_archive(self._storage, source, self._encoding)

    def process(self) -> ProcessState | None:
        """Return where the archive stands; None where it has no record yet."""
        archive = self._archive
        number = archive.count_records()
        if not number:
            return None
        return state_of(self._name, archive, archive.record(number), archive.newest_definitions())

    def copies(self) -> ArchiveDefinitions:
        """Return what the archive says of copies."""
        return self._archive.newest_definitions()

    def consumer(self) -> Consumer:
        """What the source knows the pipeline by."""
        return consumer_of(self._name, self._archive.header.id if self.is_made() else "", self.label)

    def queue(self) -> None:
        """Return none: change files hold every value, as its canonical text."""

    def requests(self) -> None:
        """Return none: readers of an archive put a copy in its table's place once, where the table begins."""

    def ledger(self, lock: Callable[[], RunLock]) -> ArchiveLedger:
        """Open the ledger of a run."""
        return ArchiveLedger(self._name, self._storage, lock)

    def feed(self, spark: Spark, ledger: SinkLedger, following: FeedSettings) -> ArchiveFeed:
        """What has tasks write data files."""
        assert isinstance(ledger, ArchiveLedger)
        max_age_s = 0 if following.until_caught_up else self._max_age_s
        return ArchiveFeed(spark, following, ledger=ledger, writer=self._writer, max_age_s=max_age_s)

    def copy(
        self,
        spark: Spark,
        ledger: SinkLedger,
        copying: Copying,
        stop: threading.Event,
        listener: CopyListener,
    ) -> None:
        """Publish the rows of tables. A copy that was cut short is of no account, and begun anew."""
        assert isinstance(ledger, ArchiveLedger)
        if not copying.tables:
            return
        ledger.save_dictionary(copying.versions)
        with copying.origin.hold_snapshot() as held:
            # DDL from now on is captured, and its changes lie behind the snapshot.
            copying.confirm()
            chunks = cut_apart(copying, copying.tables)
            there = {chunk.table for chunk in chunks}
            ids = {name: id_ for name, id_ in copying.ids.items() if name in there}
            copy = Copy(secrets.token_hex(8), held.anchor, ids)
            listener.copying(len(chunks), len(ids))
            source = CopySource(held.text, held.exported)
            work: list[Work] = [(bundle, source) for bundle in bundles(chunks)]
            task = CopyTask(copying.source, copying.access, copying.tables, held.scn, self._writer(ledger.epoch))
            jobs = PublishCopyJobs(spark, task)
            while work:
                if stop.is_set():
                    return
                try:
                    done = jobs.copy(work[: jobs.at_once])
                except TableError as exc:
                    copying.leave_out(exc)
                    copy = copy.without(TableName(*exc.table))
                    work = without(exc.table, work)
                    continue
                work = work[jobs.at_once :]
                files: dict[TableName, list[DataFile]] = {}
                for name, of_chunk in done:
                    files.setdefault(name, []).extend(of_chunk)
                ledger.add_copies(copy, files)
                listener.copied(len(done), sum(file.changes for of in files.values() for file in of))
            if copy.ids:
                ledger.finish_copies(copy)

    def _writer(self, epoch: int) -> FileWriter:
        return FileWriter(self._storage, self._encoding, epoch)

    @property
    def _archive(self) -> Archive:
        return Archive(self._storage)


_: type[Sink] = ArchiveSink
