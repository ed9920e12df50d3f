"""Publication triggers for PostgreSQL: what writes an event log where no other product does.

One row trigger and one function for each table. A function runs with its owner's rights, and looks names up in the
system's schema only: writers need no right on the log, and no function of theirs takes the place of one that it calls.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from penstock.change import TableName
from penstock.database import SetupStep
from penstock.dialects.postgres.casts import text_sql
from penstock.dialects.postgres.connection import CANONICAL_SETTINGS, Connection, literal, quote
from penstock.dialects.postgres.source.event_log_columns import BoundColumns
from penstock.formats.xds.table_key import may_be_key_column
from penstock.patterns import TablePattern
from penstock.schema import Column
from penstock.sources.event_log.classes import Child, Classes, DatabaseClass

Mode: TypeAlias = Literal["fields", "fields_now", "rows_now"]
"""What triggers write: old and new values, which columns changed, or which rows."""

TRIGGER = "penstock_event_log"
"""What each trigger is called."""

_QUOTE = r"""
CREATE OR REPLACE FUNCTION {schema}.key_value(v text) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN v = '' OR v ~ '[,;''+"=\\<>]'
    THEN '"' || replace(replace(v, '\', '\\'), '"', '\"') || '"' ELSE v END $$"""

_FUNCTION = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp{settings} AS $penstock$
BEGIN
{body}
  RETURN NULL;
END $penstock$;
DROP TRIGGER IF EXISTS {trigger} ON {table};
CREATE TRIGGER {trigger} AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}();"""

_TRUNCATE = """
DO $penstock$
DECLARE
  leaf regclass;
BEGIN
  -- Where a partitioned table is truncated, so is each partition, and one may be truncated alone.
  FOR leaf IN
    SELECT relid FROM pg_partition_tree({table_text}::regclass) WHERE isleaf
    UNION SELECT oid FROM pg_class WHERE oid = {table_text}::regclass AND relkind = 'r'
  LOOP
    EXECUTE format('DROP TRIGGER IF EXISTS {trigger}_truncate ON %s', leaf);
    EXECUTE format('CREATE TRIGGER {trigger}_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT'
      ' EXECUTE FUNCTION %s()', leaf, {function_text});
  END LOOP;
END $penstock$"""

_LACKING = """
SELECT n.nspname, c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_namespace o ON o.oid = p.pronamespace
WHERE t.tgname = %s AND o.nspname = %s AND strpos(p.prosrc, 'TRUNCATE') > 0"""

_UNWATCHED = f"""
SELECT n.nspname, c.relname, array_agg(l.relid::regclass::text ORDER BY l.relid::regclass::text)
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace o ON o.oid = p.pronamespace
CROSS JOIN LATERAL pg_partition_tree(c.oid) l
WHERE t.tgname = '{TRIGGER}' AND t.tgparentid = 0 AND o.nspname = %s AND strpos(p.prosrc, 'TRUNCATE') > 0
  AND c.relkind = 'p' AND l.isleaf
  AND NOT EXISTS (SELECT FROM pg_trigger w WHERE w.tgrelid = l.relid AND w.tgname = '{TRIGGER}_truncate')
GROUP BY n.nspname, c.relname"""


def trigger_steps(
    connection: Connection, writer: Writer, classes: Classes, modes: Mapping[str, Mode]
) -> Iterator[SetupStep]:
    """Make the triggers that are missing, each table's in a transaction of its own."""
    schema = writer.schema
    there = {TableName(*row) for row in connection.execute(_LACKING, [TRIGGER, schema]).fetchall()}
    patterns = [(TablePattern.parse(text), mode) for text, mode in modes.items()]
    wanted: list[tuple[TableName, str, str]] = []
    for of in classes.by_name.values():
        tables: list[tuple[TableName, Child | None]] = [(of.name, None), *((c.table.name, c) for c in of.children)]
        for name, child in tables:
            mode = next((mode for pattern, mode in patterns if pattern.matches(name)), None)
            if mode is not None and name not in there and not unnameable_keys(of):
                body = writer.parent(of, mode) if child is None else writer.child(of, child, mode)
                columns = of.table.columns if child is None else child.table.columns
                wanted.append((name, body, _settings_sql(columns)))
    if wanted:
        yield SetupStep("create the function that writes keys", _QUOTE.format(schema=quote(schema)))
    for name, body, settings_sql in wanted:
        table = quote(name.schema, name.name)
        function = _FUNCTION.format(
            function=_function(schema, name), settings=settings_sql, body=body, trigger=TRIGGER, table=table
        )
        sql = f"{function}\n{_truncate_sql(schema, name)}"
        yield SetupStep(f"create the trigger of {name} that writes the event log", sql, is_apart=True)
    for name, partitions in unwatched_partitions(connection, schema).items():
        if any(pattern.matches(name) for pattern, _ in patterns):
            what = f"have TRUNCATE of {', '.join(partitions)} written to the event log"
            yield SetupStep(what, _truncate_sql(schema, name), is_apart=True)


def unnameable_keys(of: DatabaseClass) -> Sequence[str]:
    """The key columns of a class that a log cannot name: whoever writes rows about it, none can be read."""
    return [column.name for column in of.key if not may_be_key_column(column.name)]


def unwatched_partitions(connection: Connection, schema: str) -> Mapping[TableName, Sequence[str]]:
    """Partitions by their tables that were added since setup: rows are logged there, but no TRUNCATE of them alone.

    A table passes its row triggers on to new partitions, and no trigger for TRUNCATE.

    Args:
        schema: The journal's, which holds the functions of the triggers.
    """
    rows = connection.execute(_UNWATCHED, [schema]).fetchall()
    return {TableName(*name): partitions for *name, partitions in rows}


def _truncate_sql(schema: str, name: TableName) -> str:
    function, table = literal(_function(schema, name)), literal(quote(name.schema, name.name))
    return _TRUNCATE.format(trigger=TRIGGER, table_text=table, function_text=function)


def _function(schema: str, name: TableName) -> str:
    """The function that writes what happens in a table."""
    return quote(schema, f"log_{zlib.crc32(name.name.encode()):08x}_{name.name[:20]}")


def _settings_sql(columns: Sequence[Column]) -> str:
    """The settings that the text of columns depends on: it is not to change with the writer's session."""
    names = {name for column in columns for name in column.native.get("settings", ())} & CANONICAL_SETTINGS.keys()
    return "".join(f" SET {name} = {literal(CANONICAL_SETTINGS[name])}" for name in sorted(names - {"search_path"}))


_FILLED_HERE = {
    "status": "'N'",
    "event_time": "clock_timestamp() AT TIME ZONE 'UTC'",
    "perpetrator": "session_user::text",
}
"""What a row gets where the log has no default of its own."""


class Writer:
    """Writes the bodies of trigger functions, which are in the journal's schema."""

    def __init__(self, log: TableName, columns: BoundColumns, schema: str) -> None:
        """Write into a log by the names of its columns."""
        self.schema = schema
        self._log_name, self._columns = quote(log.schema, log.name), columns
        self._key_value = quote(schema, "key_value")
        self._filled = {name: sql for name, sql in _FILLED_HERE.items() if name not in columns.filled}
        if columns.types["event_time"] == "timestamp with time zone":
            self._filled = {name: sql.removesuffix(" AT TIME ZONE 'UTC'") for name, sql in self._filled.items()}

    def parent(self, of: DatabaseClass, mode: Mode) -> str:
        """Rows of a class's own table."""
        key = [column.name for column in of.key]
        columns = [column for column in of.table.columns if column.name not in key]
        changed = " OR ".join(f"NEW.{quote(name)} IS DISTINCT FROM OLD.{quote(name)}" for name in key)
        insert = "\n".join(self._inserted(of, columns, mode))
        update = "\n".join(self._updated(of, columns, mode))
        delete = self._log(of, 4, key, "OLD")
        return f"""\
{self._truncated(of, [4], [None], key)}
  ELSIF TG_OP = 'DELETE' THEN
{delete}
  ELSIF TG_OP = 'INSERT' THEN
{insert}
  ELSIF {changed} THEN
{delete}
{insert}
  ELSE
{update}
  END IF;"""

    def child(self, of: DatabaseClass, child: Child, mode: Mode) -> str:
        """Rows of a child table, as updates of the parent's row; without a parent's key there is none."""
        removed, added = ("\n".join(self._told(of, child, row, mode)) for row in ("OLD", "NEW"))
        # The parents may be truncated with it, so what they hold now is asked for, and no row is said to have gone.
        names = [f"{child.table.name.name}.{column.name}" for column in child.columns]
        return f"""\
{self._truncated(of, [8] * len(names), names, child.links)}
  ELSE
    IF TG_OP <> 'INSERT' THEN
{removed}
    END IF;
    IF TG_OP <> 'DELETE' THEN
{added}
    END IF;
  END IF;"""

    def _truncated(
        self, of: DatabaseClass, types: Sequence[int], names: Sequence[str | None], links: Sequence[str]
    ) -> str:
        """Write, before all rows of the table go, what is logged of each object, once; begins an IF."""
        pairs = self._pairs(of, links, "r")
        has_key = " AND ".join(f"r.{quote(link)} IS NOT NULL" for link in links)
        told = []
        for type_, name in zip(types, names, strict=True):
            cells = {
                "event_type": str(type_),
                "table_name": literal(of.name.name),
                "table_key": "penstock_key",
                "column_name": "NULL" if name is None else literal(name),
                "old_value": "NULL",
                "new_value": "NULL",
                **self._filled,
            }
            columns = ", ".join(self._columns[cell] for cell in cells)
            insert = (
                f"INSERT INTO {self._log_name} ({columns}) SELECT {', '.join(cells.values())}"
                f" FROM (SELECT DISTINCT {pairs} AS penstock_key FROM ONLY "
            )
            told.append(f"    EXECUTE {literal(insert)} || TG_RELID::regclass || {literal(f' r WHERE {has_key}) r')};")
        return "  IF TG_OP = 'TRUNCATE' THEN\n" + "\n".join(told)

    def _told(self, of: DatabaseClass, child: Child, row: str, mode: Mode) -> Iterator[str]:
        has_parent = " AND ".join(f"{row}.{quote(link)} IS NOT NULL" for link in child.links)
        for column in child.columns:
            value = text_sql(column, f"{row}.{quote(column.name)}")
            name = f"{child.table.name.name}.{column.name}"
            if mode == "fields":
                old, new = (value, "NULL") if row == "OLD" else ("NULL", value)
                told = self._log(of, 2, child.links, row, column=name, values=(old, new))
            else:
                told = self._log(of, 8, child.links, row, column=name)
            yield f"    IF {has_parent} THEN\n{told}\n    END IF;"

    def _inserted(self, of: DatabaseClass, columns: Sequence[Column], mode: Mode) -> Iterator[str]:
        key = [column.name for column in of.key]
        if mode == "rows_now" or not columns:
            yield self._log(of, 5, key, "NEW")
            return
        for column in columns:
            value = f"NEW.{quote(column.name)}"
            new = text_sql(column, value) if mode == "fields" else "NULL"
            told = self._log(of, 1 if mode == "fields" else 7, key, "NEW", column=column.name, values=("NULL", new))
            # A row of NULLs is a value, and not the same as none.
            yield f"    IF {value} IS DISTINCT FROM NULL THEN\n{told}\n    END IF;"
        nothing = " AND ".join(f"NEW.{quote(column.name)} IS NOT DISTINCT FROM NULL" for column in columns)
        yield f"    IF {nothing} THEN\n{self._log(of, 5, key, 'NEW')}\n    END IF;"

    def _updated(self, of: DatabaseClass, columns: Sequence[Column], mode: Mode) -> Iterator[str]:
        key = [column.name for column in of.key]
        if mode == "rows_now" or not columns:
            yield self._log(of, 6, key, "NEW")
            return
        for column in columns:
            old, new = (text_sql(column, f"{row}.{quote(column.name)}") for row in ("OLD", "NEW"))
            if mode == "fields":
                told = self._log(of, 2, key, "NEW", column=column.name, values=(old, new))
            else:
                told = self._log(of, 8, key, "NEW", column=column.name)
            # By its text: a type may have no operator, and equal numbers may be written in two ways.
            yield f"    IF ({old}) IS DISTINCT FROM ({new}) THEN\n{told}\n    END IF;"

    def _log(
        self,
        of: DatabaseClass,
        type_: int,
        links: Sequence[str],
        row: str,
        *,
        column: str | None = None,
        values: tuple[str, str] = ("NULL", "NULL"),
    ) -> str:
        """Write one row of the log; `values` are SQL for the old and the new one."""
        old, new = values
        cells = {
            "event_type": str(type_),
            "table_name": literal(of.name.name),
            "table_key": self._pairs(of, links, row),
            "column_name": "NULL" if column is None else literal(column),
            "old_value": old,
            "new_value": new,
            **self._filled,
        }
        names = ", ".join(self._columns[name] for name in cells)
        return f"    INSERT INTO {self._log_name} ({names}) VALUES ({', '.join(cells.values())});"

    def _pairs(self, of: DatabaseClass, links: Sequence[str], row: str) -> str:
        """SQL for the key of a row as text."""
        return " || '+' || ".join(
            f"{literal(f'{key.name}=')} || {self._key_value}({text_sql(key, f'{row}.{quote(link)}')})"
            for key, link in zip(of.key, links, strict=True)
        )
