"""The ten columns of an event log in PostgreSQL: what they are called there, of which types, and who may write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.change import TableName
from penstock.dialects.postgres.connection import Connection, quote
from penstock.errors import OperatorError
from penstock.sources.event_log.classes import one_named
from penstock.sources.event_log.settings import COLUMNS, LAYOUTS, EventLogSettings

_TIMES = {"timestamp without time zone", "timestamp with time zone", "date"}

_INTEGERS = {"smallint", "integer", "bigint", "numeric"}

_COLUMNS_OF = """
SELECT a.attname, format_type(a.atttypid, NULL), a.atttypmod, a.atthasdef OR a.attidentity <> '',
  c.relkind IN ('r', 'p'), NOT (c.relkind = 'r' AND c.relhassubclass)
    AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid
    AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) = (%s, %s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_WRITABLE = """
SELECT has_table_privilege(%(table)s, 'INSERT'), s.name, has_sequence_privilege(s.name, 'USAGE'),
  EXISTS (SELECT FROM pg_trigger WHERE tgrelid = %(table)s::regclass AND tgtype & 6 = 6), current_user
FROM (SELECT) one LEFT JOIN (
  SELECT pg_get_serial_sequence(%(table)s, attname) FROM pg_attribute
  WHERE attrelid = %(table)s::regclass
    AND format('"%%s"', replace(attname, '"', '""')) = %(column)s AND attidentity = ''
) s (name) ON true
"""
"""Whether rows can be inserted into a log, and what numbers them: a sequence, or a trigger before the insert."""

_NUMBERED_BY = """
SELECT s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle
FROM pg_attribute a LEFT JOIN pg_attrdef f ON (f.adrelid, f.adnum) = (a.attrelid, a.attnum)
JOIN pg_depend d ON (d.classid, d.objid, d.refclassid) = ('pg_attrdef'::regclass, f.oid, 'pg_class'::regclass)
  OR (d.refclassid, d.refobjid, d.refobjsubid, d.classid, d.deptype)
    = ('pg_class'::regclass, a.attrelid, a.attnum, 'pg_class'::regclass, 'i')
JOIN pg_sequence s ON s.seqrelid = CASE d.deptype WHEN 'i' THEN d.objid ELSE d.refobjid END
WHERE a.attrelid = %(table)s::regclass AND format('"%%s"', replace(a.attname, '"', '""')) = %(column)s
"""
"""Finds the sequences that number the rows of a log where an insert does not."""

_DEFAULT = """
SELECT pg_get_expr(f.adbin, f.adrelid)
FROM pg_attribute a JOIN pg_attrdef f ON (f.adrelid, f.adnum) = (a.attrelid, a.attnum)
WHERE a.attrelid = %(table)s::regclass AND format('"%%s"', replace(a.attname, '"', '""')) = %(column)s
"""

_BEGINNING = re.compile(
    r"\b((now|transaction_timestamp|statement_timestamp)\(\)|(CURRENT|LOCAL)_?(DATE|TIMESTAMP|TIME)\b)", re.IGNORECASE
)
"""Finds what in an expression says when a transaction, or a statement, began."""

_LOGS = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition AND n.nspname !~ '^(pg_|penstock_|information_schema$)'
  AND NOT EXISTS (SELECT FROM unnest(%s::text[]) u (name) WHERE NOT EXISTS (SELECT FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND lower(a.attname) = u.name))
ORDER BY 1, 2
"""

_ONE_CHARACTER = 5
"""What the catalogue says of a type of one character at most."""

MADE_TYPES: Mapping[str, str] = {
    "record_id": "bigint",
    "status": "character",
    "event_type": "smallint",
    "event_time": "timestamp without time zone",
    "perpetrator": "character varying",
    "table_name": "character varying",
    "table_key": "text",
    "column_name": "character varying",
    "old_value": "text",
    "new_value": "text",
}
"""The types in the log that setup makes, without lengths."""


@dataclass(frozen=True)
class BoundColumns:
    """The log's columns.

    Attributes:
        names: By the names in `settings.COLUMNS`, quoted.
        types: Their types, without lengths.
        is_status_narrow: A status has no blanks behind it, or they mean nothing to the type.
        filled: Those that the database fills where an insert leaves them out, by the same names.
        has_xmin: The database tells which transaction has written a row; a view tells no such thing.
        is_unique: No two rows have one `record_id`. A table that inherits the log has no index of it.
    """

    names: Mapping[str, str]
    types: Mapping[str, str]
    is_status_narrow: bool
    filled: frozenset[str]
    has_xmin: bool = True
    is_unique: bool = True

    def __getitem__(self, name: str) -> str:
        return self.names[name]

    def text(self, name: str, of: str = "") -> str:
        """SQL for the text of a column; `of` stands before it, as `l.`.

        The owner of a type may have made a cast to text, which would run with the reader's rights.
        """
        value = f"{of}{self[name]}"
        if "." not in self.types[name]:
            return f"{value}::text"
        return f"CASE WHEN {value} IS DISTINCT FROM NULL THEN pg_catalog.concat({value}) END"

    @property
    def digest(self) -> str:
        """SQL for a number that tells a row from others, whatever its status and `record_id`."""
        texts = ("event_type", "table_name", "table_key", "column_name", "old_value", "new_value")
        cells = [f'{self.text(name)} COLLATE "C"' for name in texts]
        is_plain = self.types["event_time"] in _TIMES
        # No text is made of a time, which takes as long as all the rest.
        cells.append(self["event_time"] if is_plain else f'{self.text("event_time")} COLLATE "C"')
        return f"pg_catalog.hash_record_extended(ROW({', '.join(cells)}), 0)"

    def is_status(self, status: str) -> str:
        """SQL for whether a row has a status; blanks behind it mean nothing."""
        if self.is_status_narrow:
            return f"{self['status']} = '{status}'"
        return f"rtrim({self.text('status')}, ' ') = '{status}'"

    @property
    def has_id(self) -> str:
        """SQL for whether a row can be named by its `record_id`."""
        id_ = self["record_id"]
        if self.types["record_id"] != "numeric":
            return f"{id_} IS NOT NULL"
        return f"{id_} BETWEEN {-(2**63)} AND {2**63 - 1} AND {id_} = trunc({id_})"


def has_log(connection: Connection, settings: EventLogSettings) -> bool:
    """Whether the log is there."""
    return bool(connection.execute(_COLUMNS_OF, [settings.table.schema, settings.table.name]).fetchall())


def bind(connection: Connection, settings: EventLogSettings, *, where: str) -> BoundColumns:
    """Find the ten columns of a log.

    Raises:
        OperatorError: The log or one of them is missing, is of another type, or may not be read or written.
    """
    found = connection.execute(_COLUMNS_OF, [settings.table.schema, settings.table.name]).fetchall()
    if not found:
        do = "correct capture.event_log.table, or run `penstock setup`, which makes it where create is true"
        raise OperatorError("there is no such event log table", where=where, do=do)
    actual = [name for name, *_ in found]
    if settings.layout is not None:
        meant: dict[str, str | None] = dict.fromkeys(COLUMNS)
        meant |= dict(zip(LAYOUTS[settings.layout], actual, strict=False))
    else:
        meant = {name: one_named(settings.columns.get(name, name), actual) for name in COLUMNS}
    missing = [settings.columns.get(name, name) for name in COLUMNS if meant[name] is None]
    if missing:
        raise OperatorError(
            f"the event log lacks {', '.join(map(repr, missing))}; it needs ten columns, whether rows use them or not",
            where=where,
            do="add what is missing, or say below capture.event_log.columns what it is called",
        )
    types = {name: (type_, size) for name, type_, size, *_ in found}
    filled = {name for name, _, _, is_filled, *_ in found if is_filled}
    bound = {name: types[str(meant[name])] for name in COLUMNS}
    for name, wanted in (("record_id", _INTEGERS), ("event_time", _TIMES)):
        if bound[name][0] not in wanted:
            what = f"column {meant[name]!r} of the event log is {bound[name][0]}"
            raise OperatorError(what, where=where, do=f"it must be one of {', '.join(sorted(wanted))}")
    _refuse_rights(connection, settings, where)
    status, size = bound["status"]
    is_unique = next(is_unique for name, *_, is_unique in found if name == meant["record_id"])
    return BoundColumns(
        {name: quote(str(actual_name)) for name, actual_name in meant.items()},
        {name: type_ for name, (type_, _) in bound.items()},
        is_status_narrow=status in ("character", '"char"') or size == _ONE_CHARACTER,
        filled=frozenset(name for name in COLUMNS if meant[name] in filled),
        has_xmin=all(has_xmin for *_, has_xmin, _ in found),
        is_unique=is_unique,
    )


def find_event_logs(connection: Connection) -> list[TableName]:
    """Return the tables and views that have all columns of an event log, by their documented names."""
    return [TableName(schema, name) for schema, name in connection.execute(_LOGS, [list(COLUMNS)]).fetchall()]


def made_columns(settings: EventLogSettings) -> BoundColumns:
    """The columns of the log that setup makes."""
    return BoundColumns(
        {name: quote(settings.columns.get(name, name)) for name in COLUMNS},
        MADE_TYPES,
        is_status_narrow=True,
        filled=frozenset(("record_id", "status", "event_time", "perpetrator")),
    )


def faults_of_triggers(
    connection: Connection, settings: EventLogSettings, columns: BoundColumns, *, where: str
) -> Iterator[OperatorError]:
    """Say why triggers that run with this user's rights could not write the log: every change of a table would fail."""
    table = quote(settings.table.schema, settings.table.name)
    row = connection.execute(_WRITABLE, {"table": table, "column": columns["record_id"]}).fetchone()
    assert row is not None
    may_insert, sequence, may_count, is_numbered_by_trigger, user = row
    if "record_id" not in columns.filled and not is_numbered_by_trigger:
        what = f"column {columns['record_id']} of the event log has no default, so triggers have no number for a row"
        yield OperatorError(what, where=where, do="make it an identity column, or leave capture.event_log.triggers out")
    if not may_insert:
        do = f"GRANT INSERT ON {table} TO {quote(user)}"
        yield OperatorError("triggers of setup may not write the event log", where=where, do=do)
    if sequence is not None and not may_count:
        do = f"GRANT USAGE ON SEQUENCE {sequence} TO {quote(user)}"
        yield OperatorError("triggers of setup may not number rows of the event log", where=where, do=do)


def doubts_of_order(connection: Connection, settings: EventLogSettings, columns: BoundColumns) -> Iterator[str]:
    """Say why rows may not be read in the order in which they were written, as far as the catalogue shows it."""
    table = quote(settings.table.schema, settings.table.name)
    may = "so of two changes of one object the later one may be read first"
    numbered = connection.execute(_NUMBERED_BY, {"table": table, "column": columns["record_id"]}).fetchall()
    for sequence, cache, increment, cycles in numbered:
        if cache > 1:
            yield (
                f"record_id is numbered by sequence {sequence}, of which each session takes {cache} numbers at a time:"
                f" rows are read in the order of their numbers, {may}. ALTER SEQUENCE {sequence} CACHE 1, and have"
                " sessions connect anew"
            )
        if increment < 0:
            yield (
                f"record_id is numbered by sequence {sequence}, which counts down: rows are read in the order of their"
                f" numbers, {may}. ALTER SEQUENCE {sequence} INCREMENT 1, from a number above all that there are"
            )
        if cycles:
            yield (
                f"record_id is numbered by sequence {sequence}, which begins again at its end: rows are read in the"
                f" order of their numbers, {may}. ALTER SEQUENCE {sequence} NO CYCLE"
            )
    if settings.future_events:
        time = columns["event_time"]
        for (default,) in connection.execute(_DEFAULT, {"table": table, "column": time}).fetchall():
            if (found := _BEGINNING.search(default)) is not None:
                zone = "" if columns.types["event_time"] == "timestamp with time zone" else " AT TIME ZONE 'UTC'"
                yield (
                    f"event_time is {found[0]} by default, when a transaction or statement began, and not when it wrote"
                    f" the row: with future_events rows are read in that order, {may}."
                    f" ALTER TABLE {table} ALTER COLUMN {time} SET DEFAULT clock_timestamp(){zone}"
                )


def _refuse_rights(connection: Connection, settings: EventLogSettings, where: str) -> None:
    wanted = "SELECT, DELETE" if settings.delete_processed and not settings.keep_failed_rows else "SELECT, UPDATE"
    if settings.delete_processed and settings.keep_failed_rows:
        wanted = "SELECT, UPDATE, DELETE"
    table = quote(settings.table.schema, settings.table.name)
    rights = " AND ".join(f"has_table_privilege(%(table)s, '{right}')" for right in wanted.split(", "))
    row = connection.execute(f"SELECT {rights}, current_user", {"table": table}).fetchone()
    assert row is not None
    if not row[0]:
        do = f"GRANT {wanted} ON {table} TO {quote(row[1])}"
        raise OperatorError("the event log may not be read and written", where=where, do=do)
