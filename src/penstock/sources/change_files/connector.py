"""An archive of change files as the source of a pipeline: there is nothing to ask but its files.

Nothing is set up, no lock is waited for, and nothing can be compared: there are records of tables, but no tables.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence

from penstock.archive import Archive
from penstock.change import TableName
from penstock.database import DatabasePlan
from penstock.errors import OperatorError
from penstock.position import Anchor, Scn
from penstock.schema import TableSchema
from penstock.sources.change_files.copy import StoredOrigin
from penstock.sources.change_files.source import ChangeFiles, ChangeFilesAccess
from penstock.sources.change_files.span import Bound, find_span
from penstock.sources.declared_tables import DeclaredTables
from penstock.storage import Storage
from penstock.stream import StoredCopy


class ChangeFilesConnector:
    """Implements `pipeline.connectors.SourceWithCopies`."""

    def __init__(self, storage: Storage) -> None:
        """Stand for the archive at a place; nothing is touched yet."""
        self._storage = storage
        self._archive = Archive(storage)
        self._count, self._known = 0, DeclaredTables(())

    @property
    def label(self) -> str:
        """The archive, named without secrets."""
        return self._storage.label

    @property
    def access(self) -> ChangeFilesAccess:
        """How tasks reach it."""
        return ChangeFilesAccess(self._storage)

    def match(self, patterns: Sequence[str]) -> Sequence[TableName]:
        """Return the tables that patterns mean, of all that the archive has ever told of.

        Raises:
            OperatorError: A pattern means no table; or there is no archive.
        """
        return self._told.match(
            patterns,
            kind="archive",
            where=self.label,
            do="the archive knows a table from when the run that publishes has copied it; names are taken as they"
            " stand in the catalogue of its source",
        )

    def describe(self, tables: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Describe tables as the archive knew them last, so that they take what was written under earlier versions."""
        return self._told.describe(tables)

    def plan(self, tables: Sequence[TableName], row_triggers: Sequence[str]) -> DatabasePlan:
        """Plan nothing: an archive is read as it is. Notes say which keys of a table do not hold for all of it."""
        plan = self._told.plan(tables, label=self.label)
        plan.notes.append("the first copy of each table is the one that is stored here, of its time")
        return plan

    def explain(self, tables: Sequence[TableName]) -> Sequence[str]:
        """No rule concerns any of the tables."""
        return ()

    def blueprint(self, tables: Sequence[TableName], *, types_of: Sequence[TableName] = ()) -> None:
        """Say nothing but what schemas say: there is no database that could be asked."""

    def has_capture(self) -> bool:
        """Make sure that there is an archive; otherwise raise an `OperatorError` that says what there is."""
        _ = self._archive.header
        return True

    def open_source(self) -> ChangeFiles:
        """Open the log of the archive."""
        return ChangeFiles(Archive(self._storage))

    def position_of(self, text: str, *, option: str) -> Scn:
        """Find the last transaction at or before a position, or a time of commit, that a person named.

        Raises:
            ConfigError: It is neither of the two.
            OperatorError: The archive does not reach so far.
        """
        bound = Bound.parse(text, option=option)
        count = self._archive.count_records()
        last = self._archive.record(count) if count else None
        upto = find_span(self._archive, None, bound).upto
        if bound.position is not None:
            is_behind = last is None or bound.position > last.end
        else:
            # Behind the last transaction; but the run that publishes may have looked for later ones, and found none.
            assert bound.at is not None
            is_behind = last is None or (upto == last.end and bound.at > last.written_at)
        if is_behind:
            end = "" if last is None else f", position {last.end}, written at {last.written_at.isoformat()}"
            raise OperatorError(
                f"{option} {text} lies behind the end of the archive{end}",
                where=self.label,
                do="publish so far first, or name a point that is there",
            )
        return bound.position if bound.position is not None else upto

    def copies_at(self, tables: Collection[TableName], position: Scn) -> Sequence[StoredCopy]:
        """Return the newest whole copy of each table at or before a position; tables of one copy stand together.

        A table that was copied under another name since is gone from the name that it had.
        """
        copies = [
            copy
            for copy in self._archive.newest_definitions().whole_copies
            if copy.is_complete and copy.position <= position
        ]
        newest = {copy.table: copy for copy in copies}
        name_now = {copy.id: copy.table for copy in copies}
        of: dict[str, set[TableName]] = {}
        for table, copy in newest.items():
            if table not in tables or name_now[copy.id] != table:
                continue
            of.setdefault(copy.copy, set()).add(table)
        positions = {copy.copy: copy.position for copy in newest.values()}
        found = [StoredCopy(id_, Anchor(positions[id_], ""), frozenset(names)) for id_, names in of.items()]
        return sorted(found, key=lambda copy: copy.cut.scn)

    def first_copies(self, tables: Collection[TableName]) -> Mapping[TableName, Scn]:
        """Return the position from which on the archive has the rows of each table; those without are left out."""
        first: dict[TableName, Scn] = {}
        for copy in self._archive.newest_definitions().whole_copies:
            if copy.is_complete and copy.table in tables:
                first.setdefault(copy.table, copy.position)
        return first

    def stored(self, copy: StoredCopy, _stop: threading.Event) -> StoredOrigin:
        """What a copy is read from."""
        return StoredOrigin(self._archive, copy)

    @property
    def _told(self) -> DeclaredTables:
        source = ChangeFiles(self._archive)
        if source.count_tables() != self._count:
            versions = source.tables()
            self._count, self._known = len(versions), DeclaredTables(versions)
        return self._known
