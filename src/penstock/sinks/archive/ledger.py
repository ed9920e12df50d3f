"""An archive of change files as the ledger of a run: what it holds is done, and nothing else is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from penstock.apply.ledger import ProcessState
from penstock.archive import Archive, ArchiveDefinitions
from penstock.change import TableName
from penstock.errors import FencedError, OperatorError
from penstock.formats.archive_log import ArchiveRecord, CopiedPart, DataFile
from penstock.history import Consumer, History, Joined
from penstock.pipeline.connectors import RunLock
from penstock.pipeline.sink import SinkLedger, process_of
from penstock.position import Anchor, Scn
from penstock.sinks.archive.files import ArchiveWriter, WrittenFiles
from penstock.storage import Storage
from penstock.stream import TableVersion


@dataclass(frozen=True)
class Copy:
    """A first copy of tables as of a cut.

    Attributes:
        name: Drawn when it began.
        ids: The source's own number of each table.
    """

    name: str
    cut: Anchor
    ids: Mapping[TableName, int]

    def without(self, table: TableName) -> Copy:
        """The same copy once a table is left out; what was written of it is of no account."""
        return replace(self, ids={name: id_ for name, id_ in self.ids.items() if name != table})

    def part(self, table: TableName, files: Sequence[DataFile], *, is_complete: bool) -> CopiedPart:
        """Some of a table's rows, or the last of them."""
        return CopiedPart(table, self.name, self.cut.scn, tuple(files), is_complete, self.cut.mark, self.ids[table])


class ArchiveLedger(SinkLedger):
    """What an archive holds is done; each note besides would be one more file."""

    def __init__(self, name: str, storage: Storage, lock: Callable[[], RunLock]) -> None:
        """Keep the ledger of the pipeline `name` in an archive."""
        super().__init__(lock)
        self._name = name
        self._storage = storage
        self._archive = Archive(storage)
        self._writer = ArchiveWriter(storage)
        self._written = WrittenFiles()

    @property
    def epoch(self) -> int:
        """The epoch of the run that has acquired it."""
        return self._writer.last.epoch

    def acquire(self, source: str, *, lanes: int) -> ProcessState:
        """Become the one run that publishes to the archive.

        Raises:
            OperatorError: Another run is alive, or the archive is of another source.
        """
        header = self._archive.header
        if header.source != source:
            raise OperatorError(
                f"the archive is of source {header.source!r}, not {source!r}",
                where=self._archive.label,
                do="publish to another path",
            )
        self._lock_run()
        self._written = WrittenFiles()
        self._writer.acquire()
        return self._state()

    def confirm(self) -> None:
        """Make sure that no other run has begun; raises FencedError otherwise."""
        if self._archive.count_records() != self._writer.last.number:
            raise FencedError("another run publishes to this archive", where=self._archive.label)

    def adopt(self, found: Joined) -> ProcessState:
        """Write down which history is followed from now on, and from where."""
        last = self._writer.last
        if (last.origin, last.anchor) != (found.origin, found.anchor):
            self._writer.commit(found.position, anchor=found.anchor, origin=found.origin)
        return self._state()

    def take(self, written: WrittenFiles) -> None:
        """Have files that were written be part of the archive with the next `complete`."""
        self._written = written

    def complete(self, end: Scn, consistent_at: datetime | None, anchor: Anchor | None) -> None:
        """Commit what was taken; the archive stands at `end` then."""
        self._writer.commit(end, self._written, anchor=anchor)
        self._written = WrittenFiles()

    def save_dictionary(self, versions: Iterable[TableVersion]) -> None:
        """Describe table versions that the archive does not know yet."""
        known = {(table.id, table.version) for table in self._writer.definitions.tables}
        new = [v for v in versions if (v.id, v.table.version) not in known and not (v.is_left_out or _is_merged(v))]
        files = [self._writer.describe(v.id, v.table.name, v.table.version, v.definition, v.root) for v in new]
        if files:
            self._writer.commit(self._writer.last.end, tables=files)

    def instantiated(self) -> Mapping[TableName, Scn]:
        """Return the tables whose copy is whole, and the position of each."""
        return self._writer.definitions.copied

    def is_copied(self, id_: int, table: TableName) -> bool:
        """Whether the rows of a table are there under the name that it has."""
        return self._writer.definitions.is_copied(id_, table)

    def add_copies(self, copy: Copy, files: Mapping[TableName, Sequence[DataFile]]) -> None:
        """Add parts of a copy."""
        parts = [copy.part(name, of, is_complete=False) for name, of in files.items() if of]
        if parts:
            self._writer.commit(self._writer.last.end, copies=parts)

    def finish_copies(self, copy: Copy) -> None:
        """Say that a copy is whole."""
        parts = [copy.part(name, (), is_complete=True) for name in copy.ids]
        self._writer.commit(self._writer.last.end, copies=parts)

    def _state(self) -> ProcessState:
        return state_of(self._name, self._archive, self._writer.last, self._writer.definitions)


def state_of(name: str, archive: Archive, record: ArchiveRecord, definitions: ArchiveDefinitions) -> ProcessState:
    """Say where the process of a pipeline stands whose archive ends with a record."""
    transactions, changes = record.published
    # The latest cut of the source that a copy or a record of the archive names.
    cuts = [Anchor(copy.position, copy.mark) for copy in definitions.whole_copies if copy.mark]
    cuts += [record.anchor] if record.anchor is not None else []
    history = History(
        consumer=consumer_of(name, archive.header.id, archive.label),
        origin=record.origin,
        position=record.end,
        anchor=record.anchor,
        newest=max(cuts, key=lambda cut: cut.scn, default=None),
        is_new=record.origin is None,
    )
    return process_of(history, record.epoch, at=record.written_at, transactions=transactions, changes=changes)


def consumer_of(name: str, archive_id: str, label: str) -> Consumer:
    """The consumer as which the source knows a pipeline that publishes; one without an id is found by its place."""
    return Consumer(archive_id, name, label, f"change archive {label}")


def _is_merged(version: TableVersion) -> bool:
    """Whether it is a partition that rules give the name of its root: all of its changes are of the root's versions."""
    return version.is_partition and version.table.name == version.root
