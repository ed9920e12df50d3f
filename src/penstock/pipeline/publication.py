"""A pipeline that publishes: what the command line, and any program, can do with its file."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NoReturn

from pyspark.sql import SparkSession

from penstock.apply.ledger import ProcessState
from penstock.apply.patience import Patience
from penstock.apply.process import ApplyProcess, ProcessConfig, Progress
from penstock.archive import Archive
from penstock.change import TableName
from penstock.config import PipelineConfig
from penstock.dialects.base import DatabasePlan, Step
from penstock.errors import OperatorError, PenstockError, RetryableError
from penstock.formats.archive_log import DataFile
from penstock.formats.change_file import Encoding
from penstock.history import ELSEWHERE, HistoryError, no_set, other_pipeline
from penstock.outputs.publish.files import FileWriter, check_writable, make_archive, refuse_other
from penstock.outputs.publish.task import CopyTask
from penstock.pipeline.archive_feed import ArchiveFeed
from penstock.pipeline.archive_ledger import ArchiveLedger, Copy, consumer_of, new_history, state_of
from penstock.pipeline.capturing import Capturing, CopyWatch, RunListener, not_for_ever
from penstock.pipeline.locks import Holders
from penstock.pipeline.plan import Plan
from penstock.pipeline.sides import DatabaseSource, RunLock
from penstock.pipeline.status import Status, not_set_up, status_of
from penstock.pipeline.steps import carry_out, nothing_to_set_up
from penstock.position import START
from penstock.rules.ruleset import RuleSet
from penstock.schema import TableSchema
from penstock.snapshot.chunk import CopySource, bundles
from penstock.snapshot.instantiate import CopyListener
from penstock.spark.publishing import PublishCopyJobs
from penstock.storage import MissingFileError, Storage
from penstock.stream import TableVersion, root_versions

_LOCK_PATIENCE_S = 5.0


class Publication(Capturing):
    """One pipeline file that publishes put to work. Every method may be called on its own, in its own process."""

    _when_replaced = "run `penstock setup`, which has it copied anew"

    def __init__(
        self,
        config: PipelineConfig,
        source: DatabaseSource,
        storage: Storage,
        start_spark: Callable[[], SparkSession],
        rules: RuleSet | None = None,
    ) -> None:
        """Use a source, and a place for files; neither is touched yet. Spark is started by what needs it."""
        assert config.publish is not None
        super().__init__(config, source, start_spark, rules)
        self._database = source
        self._publish = config.publish
        self._storage = storage
        self._encoding = Encoding(config.publish.format)

    def plan(self, *, adopt: bool = False) -> Plan:
        """Work out what `setup` would do. Changes nothing."""
        if adopt:
            raise self._refused("there are no target tables that could be adopted")
        tables = self._source.match(self.config.capture.tables)
        plan = Plan(
            tables=[str(table) for table in tables],
            rules=self._source.explain(tables),
            source=self._source.plan(tables, self.config.capture.row_triggers),
            target=DatabasePlan(self._storage.label),
        )
        plan.target.faults += self._archive_faults()
        if not plan.target.faults and not self._has_archive():
            plan.target.steps.append(Step("an archive of change files", "-- a folder, which `penstock setup` makes"))
        fault = self._set_fault()
        if fault is not None:
            plan.source.faults = [fault.for_archive()]
        elif not plan.target.faults:
            parted = self._history_fault()
            plan.target.faults += [] if parted is None else [parted]
        return plan

    def setup(self, *, adopt: bool = False) -> Plan:
        """Install capture, and make the archive. Doing it again does what is still missing.

        Raises:
            OperatorError: Something is in the way; the message names everything at once.
        """
        plan = self.plan(adopt=adopt)
        plan.refuse_impossible()
        make_archive(self._storage, self.config.capture.name, self._encoding)
        self._carry_out(plan.source, printer="plan")
        return plan

    def status(self) -> Status:
        """Say where the pipeline stands."""
        has_archive = self._has_archive()
        if not has_archive or not self._source.has_capture():
            found = not_set_up(self.config.name)
            return self._as_publishing(self._with_published(found) if has_archive else found)
        archive = self._archive
        process = self._process(archive)
        refused = self._history_fault()
        definitions = archive.newest_definitions()
        copied = definitions.copied
        with closing(self._source.open_source()) as stream:
            current = root_versions(stream.tables())
            followed = {name for name in self._followed(current.values(), copied) if name in current}
            whole = {name for name in followed if definitions.is_copied(current[name].id, name)}
            found = status_of(
                self.config.name,
                process,
                stream.backlog(process.low_watermark if process else START),
                stream.consumers(),
                is_running=self._is_running(),
                copied=[copied[name] for name in whole],
                to_copy=len(followed - whole),
                refused=None if refused is None else str(refused),
                attention=[str(found) for found in self._database.not_captured(self.config.capture.tables)],
            )
        return self._as_publishing(found)

    def _with_published(self, found: Status) -> Status:
        """What an archive holds whose capture set is not there (any more), and why that cannot go on."""
        process, refused = self._process(self._archive), self._history_fault()
        if process is None:
            return found
        return replace(
            found,
            transactions=process.transactions,
            changes=process.changes,
            low_watermark=process.low_watermark,
            high_watermark=process.high_watermark,
            copied=len(self._archive.newest_definitions().copied),
            refused=None if refused is None else str(refused),
        )

    def _as_publishing(self, found: Status) -> Status:
        # An archive does not say why its runs stopped.
        return replace(found, reason=None, stopped_at=None, publishes_to=self._storage.label)

    def removal(self) -> Plan:
        """Work out what `teardown` would remove. Changes nothing."""
        id_ = self._archive.header.id if self._has_archive() else ""
        consumer = consumer_of(self.config.name, id_, self._storage.label)
        return Plan([], self._source_removal(consumer), DatabasePlan(self._storage.label))

    def teardown(self) -> Plan:
        """Remove what setup made at the source; the archive stays.

        Raises:
            OperatorError: The pipeline is running.
        """
        plan = self.removal()
        with closing(self._lock_run()):
            self._carry_out(plan.source, printer="teardown")
        return plan

    def errors(self, *_: object, **__: object) -> NoReturn:
        """Refuse: what is published cannot fail at a target."""
        raise self._without_target("no error queue")

    def retry(self, *_: object, **__: object) -> NoReturn:
        """Refuse, as `errors` does."""
        raise self._without_target("no error queue")

    def origins(self, *_: object, **__: object) -> NoReturn:
        """Refuse: there is no table at a target that would have another name at the source."""
        raise self._without_target("no tables at a target")

    def verify(self, *_: object, **__: object) -> NoReturn:
        """Refuse: there is nothing that could be compared with the source."""
        raise self._without_target("no target to compare with the source")

    def resync(self, *_: object, **__: object) -> NoReturn:
        """Refuse: what was published stays."""
        raise self._without_target("no target to copy to anew", do=ELSEWHERE)

    def resync_plan(self, *_: object, **__: object) -> NoReturn:
        """Refuse, as `resync` does."""
        raise self._without_target("no target to copy to anew", do=ELSEWHERE)

    def _run(
        self, stop: threading.Event, listener: RunListener, *, until_caught_up: bool, until: str | None
    ) -> Progress:
        if until is not None:
            raise self._refused("it can be read up to any point, so it is not published up to one")
        patience = Patience(self._publish.retry_s, stop, listener)
        try:
            patience.insist(lambda: self._check_capture(listener))
            patience.insist(self._check_archive)
            if stop.is_set():
                return Progress(START)
            return self._follow_on(stop, listener, patience, until_caught_up=until_caught_up)
        except HistoryError as exc:
            raise exc.for_archive() from exc

    def _check_archive(self) -> None:
        if not self._has_archive():
            raise OperatorError("there is no archive", where=self._storage.label, do="run `penstock setup`")
        for fault in (*self._archive_faults(), self._history_fault()):
            if fault is not None:
                raise fault

    def _archive_faults(self) -> list[PenstockError]:
        """What keeps an archive from being made, or written to, at the path, whatever the source holds."""
        try:
            check_writable(self._storage)
            if self._has_archive():
                refuse_other(self._archive.header, self.config.capture.name, self._encoding, self._storage.label)
                self._process(self._archive)
        except RetryableError:
            raise
        except PenstockError as exc:
            return [exc]
        return []

    def _history_fault(self) -> OperatorError | None:
        """Why the archive cannot go on with what the source holds; None if it can, or is still to be made."""
        has_archive = self._has_archive()
        while True:
            process = self._process(self._archive) if has_archive else None
            origin = None if process is None else process.history.origin
            if origin is not None and (other := self._database.other_pipeline(origin)) is not None:
                return other_pipeline(other, where=self._storage.label)
            if not self._source.has_capture():
                return None if origin is None else no_set(where=self._storage.label)
            id_ = self._archive.header.id if has_archive else ""
            history = process.history if process else new_history(self.config.name, id_, self._storage.label)
            fault = self._database.history_fault(history)
            if fault is None:
                return None
            # A run that is at work has the log freed up to where it stands, which is read a moment earlier.
            if process == (self._process(self._archive) if has_archive else None):
                return fault.for_archive()

    def _process(self, archive: Archive) -> ProcessState | None:
        """Where an archive stands; None where it has no record yet."""
        number = archive.count_records()
        if not number:
            return None
        return state_of(self.config.name, archive, archive.record(number), archive.newest_definitions())

    def _follow_on(
        self, stop: threading.Event, listener: RunListener, patience: Patience, *, until_caught_up: bool
    ) -> Progress:
        spark = self._start_spark()
        ledger = ArchiveLedger(self.config.name, self._storage, self._lock_run)
        feed = ArchiveFeed(
            spark,
            source=self.config.capture.name,
            access=self._source.access,
            open_source=self._source.open_source,
            follow_source=lambda: self._follow(listener),
            is_meant=self._is_meant,
            ledger=ledger,
            uncopied=lambda versions: self._uncopied(versions, ledger),
            writer=self._writer,
            max_age_s=0 if until_caught_up else self._publish.max_age_s,
        )
        process = ApplyProcess(
            source=self.config.capture.name,
            feed=feed,
            ledger=ledger,
            prepare=lambda _, stop: self._copy(spark, ledger, stop, CopyWatch(listener, patience)),
            config=ProcessConfig(parallelism=1),
            patience=patience,
            listener=listener,
        )
        with closing(ledger), closing(feed), not_for_ever(spark, stop):
            return process.run(stop, until_caught_up=until_caught_up)

    def _copy(
        self, spark: SparkSession, ledger: ArchiveLedger, stop: threading.Event, listener: CopyListener
    ) -> Collection[TableName]:
        """Publish the rows of tables that the archive lacks; returns the tables that were captured when it began.

        A copy that was cut short is of no account, and begun anew.
        """
        with closing(self._source.open_source()) as stream:
            versions = stream.tables()
        captured = self._captured(versions, ledger)
        fresh = self._uncopied(versions, ledger)
        tables = self._as_captured(captured, fresh)
        if not tables:
            return captured
        ledger.save_dictionary(versions)
        origin = self._database.origin()
        with origin.hold_snapshot() as held:
            copy = Copy(secrets.token_hex(8), held.anchor, {name: captured[name].id for name in tables})
            # DDL from now on is captured, and its changes lie behind the snapshot.
            self._as_captured(captured, fresh)
            chunks = origin.cut_into_chunks(sorted(tables))
            listener.copying(len(chunks), len(tables))
            source = CopySource(held.text, held.exported)
            work = [(bundle, source) for bundle in bundles(chunks)]
            task = CopyTask(self.config.capture.name, self._source.access, tables, held.scn, self._writer(ledger.epoch))
            jobs = PublishCopyJobs(spark, task)
            for first in range(0, len(work), jobs.at_once):
                if stop.is_set():
                    return captured
                step = work[first : first + jobs.at_once]
                done = jobs.copy(step)
                files: dict[TableName, list[DataFile]] = {}
                for name, of_chunk in done:
                    files.setdefault(name, []).extend(of_chunk)
                ledger.add_copies(copy, files)
                listener.copied(len(done), sum(file.changes for of in files.values() for file in of))
            ledger.finish_copies(copy)
        return captured

    def _captured(self, versions: Sequence[TableVersion], ledger: ArchiveLedger) -> dict[TableName, TableVersion]:
        followed = self._followed(versions, ledger.instantiated())
        return {name: version for name, version in root_versions(versions).items() if name in followed}

    def _uncopied(self, versions: Sequence[TableVersion], ledger: ArchiveLedger) -> list[TableName]:
        """The tables whose rows the archive lacks, also where it has those of another one that had the name."""
        captured = self._captured(versions, ledger)
        lacking = [name for name, version in captured.items() if not ledger.is_copied(version.id, name)]
        return sorted(self._source.describe(lacking)) if lacking else []

    def _as_captured(
        self, captured: dict[TableName, TableVersion], names: Sequence[TableName]
    ) -> dict[TableName, TableSchema]:
        """Describe tables, each as the version that it was captured under.

        Raises:
            RetryableError: One was altered since.
        """
        existing = self._source.describe(names)
        altered = [
            str(name) for name in names if name in existing and existing[name].columns != captured[name].table.columns
        ]
        if altered:
            raise RetryableError(
                f"{', '.join(altered)} was altered while the first copy was about to begin",
                where=self._source.label,
                do="the copy begins anew",
            )
        return {name: replace(table, version=captured[name].table.version) for name, table in existing.items()}

    def _writer(self, epoch: int) -> FileWriter:
        return FileWriter(self._storage, self._encoding, epoch)

    @property
    def _archive(self) -> Archive:
        return Archive(self._storage)

    def _has_archive(self) -> bool:
        try:
            _ = self._archive.header
        except OperatorError as exc:
            if isinstance(exc.__cause__, MissingFileError):
                return False
            raise
        return True

    def _lock_run(self) -> RunLock:
        """Become the one run of this pipeline; raises an `OperatorError` while another one is alive."""
        lock = self._database.lock_run(self._storage.label, wait_s=_LOCK_PATIENCE_S)
        if lock is None:
            raise OperatorError(
                f"pipeline {self.config.name!r} is running already",
                where=self._storage.label,
                do="stop that `penstock run` first",
            )
        return lock

    def _is_running(self) -> bool:
        lock = self._database.lock_run(self._storage.label, wait_s=0)
        if lock is not None:
            lock.close()
        return lock is None

    def _carry_out(self, plan: DatabasePlan, *, printer: str) -> None:
        """Take the steps of a plan for the source; see `steps.carry_out`."""
        both = Plan([], plan, DatabasePlan(self._storage.label))
        with closing(Holders(self._lock_watches())) as holders:
            carry_out(both, nothing_to_set_up(), self._database.setup(printer=printer), holders)

    def _refused(self, why: str) -> OperatorError:
        return OperatorError(f"pipeline {self.config.name!r} publishes: {why}", where=self._storage.label)

    def _without_target(self, lacks: str, *, do: str = "") -> OperatorError:
        what = f"pipeline {self.config.name!r} publishes, and has {lacks}"
        shows = f"`penstock changes {self._storage.label}` shows what it has published"
        return OperatorError(what, where=self._storage.label, do=do or shows)
