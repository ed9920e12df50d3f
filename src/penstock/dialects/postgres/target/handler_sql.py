"""SQL that users' handlers have a session run, and what keeps them from ending its transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus

from penstock.apply.apply_errors import STATEMENT_REFUSED, ApplyError
from penstock.apply.handlers.sql import SqlResult, SqlRunner
from penstock.apply.handlers.statement import BindSource, Statement
from penstock.change import TableName
from penstock.dialects.postgres.casts import cast_sql
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.target.row_statements import RowStatements
from penstock.schema import Column, TableSchema

_BAR = """
CREATE TEMP TABLE penstock_open (n int);
CREATE FUNCTION pg_temp.penstock_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM pg_temp.penstock_open) THEN
    RAISE EXCEPTION 'a handler may not commit the transaction that it takes part in';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER penstock_refuse AFTER INSERT ON pg_temp.penstock_open DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION pg_temp.penstock_refuse();
ALTER TABLE pg_temp.penstock_open ENABLE ALWAYS TRIGGER penstock_refuse;
GRANT ALL ON pg_temp.penstock_open TO PUBLIC;
"""
"""As long as there is a row, a commit fails. Others may write it: a retry works with the rights of another role."""

_PARAMETER = "\0"
"""Stands for a value in SQL that may hold a %, but no zero byte."""


class PostgresHandlerSql(SqlRunner):
    """SQL of users' handlers in a session's open transaction."""

    def __init__(self, session: RowStatements) -> None:
        """Use a session."""
        self._session = session
        self._has_bar = False

    def describe(self, table: TableName) -> TableSchema | None:
        """Describe any table of the target."""
        return self._session.describe(table)

    def run_statement(self, statement: Statement, values: Sequence[tuple[Column | None, str | None]]) -> None:
        """Run the SQL of a statement handler, each value as its column's type."""
        sql, given = statement.parts[0].replace("%", "%%"), []
        for (column, value), part in zip(values, statement.parts[1:], strict=True):
            mark = _mark(column)
            given += [value] * mark.count(_PARAMETER)
            sql += mark.replace("%", "%%").replace(_PARAMETER, "%s") + part.replace("%", "%%")
        with self._session.translated():
            self._session.connection.execute(sql, given)

    def query(self, statement: str, values: Sequence[Any]) -> SqlResult:
        """Run a statement of a user's own."""
        connection = self._session.connection
        with self._session.translated():
            try:
                cursor = connection.execute(statement, values or None)
            except psycopg.Error as exc:
                if exc.sqlstate is None and not connection.closed:
                    # The driver itself: its text may repeat a value.
                    what = f"the statement and its values do not fit: {type(exc).__name__}"
                    raise ApplyError(STATEMENT_REFUSED, what) from None
                raise
            rows = cursor.fetchall() if cursor.description is not None else []
        return SqlResult(rows, cursor.rowcount)

    def set_savepoint(self, name: str) -> None:
        """Begin what `roll_back_to` undoes."""
        self._session.execute(f"SAVEPOINT {quote(name)}")

    def release(self, name: str) -> None:
        """Keep what was done since a savepoint."""
        self._session.execute(f"RELEASE SAVEPOINT {quote(name)}")

    def roll_back_to(self, name: str) -> None:
        """Undo what was done since a savepoint."""
        self._session.execute(f"ROLLBACK TO SAVEPOINT {quote(name)}")

    def prepare_bar(self) -> None:
        """Make what `bar_commit` needs, once in a session."""
        if not self._has_bar:
            with self._session.translated():
                self._session.connection.execute(_BAR)
            self._has_bar = True

    def bar_commit(self) -> None:
        """Have the server refuse to commit the open transaction."""
        self._session.execute("INSERT INTO pg_temp.penstock_open VALUES (1)")

    def unbar_commit(self) -> bool:
        """Allow it again; False where the transaction that was barred is no more."""
        return self._session.execute("DELETE FROM pg_temp.penstock_open").rowcount == 1

    def cancel(self) -> None:
        """End the statement that the session is at, from another thread."""
        with self._session.translated():
            self._session.connection.cancel_safe(timeout=5.0)


def fault_of(connection: Connection, statement: Statement, table: TableSchema | None) -> str | None:
    """Why the server cannot run the SQL of a statement handler of a table, as it is now; None where it can."""
    sql, count = statement.parts[0], 0
    for bind, part in zip(statement.binds, statement.parts[1:], strict=True):
        is_value = bind.source in (BindSource.NEW, BindSource.NEW_ONLY, BindSource.OLD)
        mark = _mark(table.by_name.get(bind.name) if is_value and table is not None else None)
        while _PARAMETER in mark:
            count += 1
            mark = mark.replace(_PARAMETER, f"${count}", 1)
        sql += mark + part
    # Without a name: the next statement takes its place.
    parsed = connection.pgconn.prepare(b"", sql.encode())
    if parsed.status == ExecStatus.COMMAND_OK:
        return None
    # The text of the statement is the user's own, and holds no value of a row.
    return (parsed.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"it is refused").decode(errors="replace")


def _mark(column: Column | None) -> str:
    return _PARAMETER if column is None else f"({cast_sql(column, _PARAMETER)})"
