"""Tables of a PostgreSQL target altered, renamed and dropped, and the ledger with them, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg

from penstock.apply.apply_errors import COLUMN_MISSING, DDL_NOT_CARRIED_OUT, OTHER, TABLE_MISSING, ApplyError
from penstock.apply.ddl import Alteration, alteration, pending, touched
from penstock.change import TableName
from penstock.dialects.postgres.connection import quote
from penstock.dialects.postgres.errors import redacted_message
from penstock.dialects.postgres.names import cut, too_long
from penstock.dialects.postgres.target.alter_statements import alter_statements, in_own_words, rename_statements
from penstock.dialects.postgres.target.error_entries import follow_columns, waiting_ddl
from penstock.dialects.postgres.target.ledger_entries import FORGET_TABLE, INHERITING, IS_KNOWN, RENAME_TABLE
from penstock.dialects.postgres.target.post_data_ddl import PostDataDdl
from penstock.dialects.postgres.target.resync import copied_by_others
from penstock.dialects.postgres.target.row_statements import RowStatements
from penstock.errors import OperatorError
from penstock.position import Scn
from penstock.schema import TableSchema


class DdlSession:
    """Carries out DDL through a session, inside its open transaction."""

    def __init__(self, session: RowStatements, process: str) -> None:
        """Alter tables that a process applies to."""
        self._session = session
        self._connection = session.connection
        self._process = process
        self._post_data_ddl = PostDataDdl(session.connection, self._run)

    def alter(self, table: TableName, wanted: Alteration, commit_scn: Scn) -> TableSchema | None:
        """See `TargetSession.alter`."""
        wanted = in_own_words(wanted)
        if wanted.is_drop:
            self.drop([table])
            return None
        there = self._session.describe_anew(table)
        if there is None and wanted.called is not None and self._session.describe_anew(wanted.called) is not None:
            # A person has renamed it, and may have done the rest.
            self._rename_in_ledger(table, wanted.called, commit_scn)
            table = wanted.called
            there = self._session.describe_anew(table)
        if there is None:
            raise ApplyError(TABLE_MISSING, f"table {table} does not exist at the target")
        left = pending(wanted, there)
        self._refuse_before_earlier(there, left, commit_scn)
        self._refuse_long_names(table, left)
        self._refuse_former_children(table, left)
        self._post_data_ddl.check_types(table, there, left)
        self._post_data_ddl.drop(table, left)
        for statement, columns in alter_statements(table, left, is_partitioned=there.is_partitioned):
            self._run(statement, columns)
        taken = {*(new for _, new in wanted.renamed), *(column.name for column in wanted.added)}
        if taken:
            # In one step, since a name may pass from one column to another. What had a name before is gone.
            called = {name: f"{name}, dropped" for name in taken} | dict(wanted.renamed)
            follow_columns(self._connection, self._process, table, called, commit_scn)
        self._post_data_ddl.check_defaults(table, left.added)
        self._post_data_ddl.add(table, left, is_partitioned=there.is_partitioned)
        if wanted.called is not None and wanted.called != table:
            self._refuse_shared(table, "rename")
            for statement in rename_statements(table, wanted.called):
                self._run(statement)
            self._rename_in_ledger(table, wanted.called, commit_scn)
            table = wanted.called
        return self._session.describe_anew(table)

    def _refuse_before_earlier(self, table: TableSchema, wanted: Alteration, commit_scn: Scn) -> None:
        """Refuse what would come before an earlier alteration of the same columns, which waits in the error queue.

        Tried again later, that one would meet another column, or none.
        """
        mine = touched(wanted)
        if not mine:
            return
        try:
            waiting = waiting_ddl(self._connection, self._process, table.name, commit_scn)
        except psycopg.Error as exc:
            raise self._session.translate(exc) from exc
        for number, change in waiting:
            try:
                earlier = pending(alteration(change), table)
            except ApplyError:
                # It is not done: a person has to do it.
                earlier = alteration(change)
            if shared := sorted(mine & touched(earlier)):
                kind, name = shared[0]
                what = f"{kind} {name!r} is altered before by entry {self._process}.{number}, which waits here, too"
                raise ApplyError(
                    DDL_NOT_CARRIED_OUT,
                    f"{what}; retry that one first",
                    where=f"table {table.name}",
                    column=name if kind == "column" else None,
                )

    def _refuse_long_names(self, table: TableName, wanted: Alteration) -> None:
        """Refuse a name that the server would cut: by a rule a name of the source's may become longer."""
        called = () if wanted.called is None else (wanted.called.schema, wanted.called.name)
        columns = (*(new for _, new in wanted.renamed), *(column.name for column in wanted.added))
        for name, size in too_long(self._connection, [*columns, *called]).items():
            what = f"{cut(name, size)}; give it a shorter one in `rules`, and have the table copied anew"
            raise ApplyError(
                DDL_NOT_CARRIED_OUT, what, where=f"table {table}", column=name if name in columns else None
            )

    def _refuse_former_children(self, table: TableName, wanted: Alteration) -> None:
        """Refuse to alter a copy with its parent that inherits from it here, and not at the source."""
        if wanted.children is None or not wanted.reaches_children:
            return
        for schema, name in self._connection.execute(INHERITING, [table.schema, table.name]).fetchall():
            if (child := TableName(schema, name)) not in wanted.children:
                do = f"ALTER TABLE {quote(schema, name)} NO INHERIT {quote(table.schema, table.name)}"
                what = f"table {child} inherits from it here, and not at the source, and would be altered with it: {do}"
                what += " at the target, and retry"
                raise ApplyError(DDL_NOT_CARRIED_OUT, what, where=f"table {table}")

    def drop(self, tables: Sequence[TableName]) -> None:
        """See `TargetSession.drop`."""
        there = [table for table in tables if self._session.describe_anew(table) is not None]
        for table in there:
            self._refuse_shared(table, "drop")
        if there:
            self._run(f"DROP TABLE {', '.join(quote(table.schema, table.name) for table in there)}")
        for table in tables:
            for forget in FORGET_TABLE:
                self._write_ledger(forget, {"schema": table.schema, "name": table.name})

    def _rename_in_ledger(self, table: TableName, called: TableName, commit_scn: Scn) -> None:
        names = {"schema": table.schema, "name": table.name, "to_schema": called.schema, "to_name": called.name}
        values = {"process": self._process, **names, "scn": commit_scn}
        if self._connection.execute(IS_KNOWN, values).fetchone() is None:
            # It is done already.
            return
        for rename in RENAME_TABLE:
            self._write_ledger(rename, {**names, "scn": commit_scn})

    def _write_ledger(self, statement: str, names: Mapping[str, str | int]) -> None:
        try:
            self._connection.execute(statement, {"process": self._process, **names})
        except psycopg.Error as exc:
            raise self._session.translate(exc) from exc

    def _refuse_shared(self, table: TableName, verb: str) -> None:
        others = copied_by_others(self._connection, self._process, [table])
        if table in others:
            what = f"it holds what process {others[table]!r} applies, too; {verb} it by hand once that is given up"
            raise ApplyError(DDL_NOT_CARRIED_OUT, what, where=f"table {table}")

    def _run(self, statement: str, columns: Sequence[str] = ()) -> None:
        try:
            self._connection.execute(statement)
        except psycopg.Error as exc:
            error = self._session.translate(exc)
            # A relation that is missing is one that the statement names, such as a default's sequence; a value that its
            # type does not take is one that rows are to get, or have.
            is_other = isinstance(error, ApplyError) and (
                error.is_of_value or error.number in (OTHER, TABLE_MISSING, COLUMN_MISSING)
            )
            if is_other or (isinstance(error, OperatorError) and exc.sqlstate is not None):
                # A right that lacks on one table, or a type that is not there, is no reason to stop all others.
                what = _told(exc)
                if columns:
                    named = f"column{'s' * (len(columns) > 1)} {', '.join(map(repr, columns))}"
                    what = f"{named}: {what}; do it at the target, and retry"
                column = columns[0] if len(columns) == 1 else None
                error = ApplyError(DDL_NOT_CARRIED_OUT, what, code=exc.sqlstate, column=column)
            raise error from exc


def _told(exc: psycopg.Error) -> str:
    """The server's words, where they name objects, and no value of a row."""
    said, state = exc.diag.message_primary, exc.sqlstate or ""
    if said and state == "2BP01" and exc.diag.message_detail:
        # What depends on the table is the reason.
        return f"{said}: {exc.diag.message_detail.replace(chr(10), '; ')}"
    return said if said and state[:2] in ("42", "3F") else redacted_message(exc.diag)
