"""What the facts of databases come to: one by one, and the source's held against the target's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.examination import DatabaseFacts, Finding, Severity, TableFacts
from penstock.text import are, count, duration

_SKEW_S = 1.0
_FAR_OFF_S = 60.0
_LOCKS = ("max_locks_per_transaction", "max_connections", "max_prepared_transactions")
_LOCKS_A_TABLE = 4
_NAMED = 3
"""So many tables are named; the others are counted."""


def clock_findings(facts: DatabaseFacts) -> Iterator[Finding]:
    """Hold a server's clock against this machine's: the lag is measured by both."""
    off_s = facts.clock_off_s
    if abs(off_s) <= max(_SKEW_S, facts.answer_s):
        return
    ahead = "ahead of" if off_s > 0 else "behind"
    what = f"the server's clock is {duration(abs(off_s))} {ahead} this machine's: lag and times are off by that"
    severity = Severity.FAULT if abs(off_s) > _FAR_OFF_S else Severity.WARNING
    yield Finding(severity, "clock", what, facts.label, "sudo timedatectl set-ntp true, on both machines")


def table_findings(facts: DatabaseFacts) -> Iterator[Finding]:
    """Name the captured tables that a copy cannot follow, or follows with more work."""
    unlogged = [table for table in facts.tables if table.is_unlogged]
    if unlogged:
        what = f"{_names(unlogged)} {are(len(unlogged))} unlogged, and so not captured"
        do = f"ALTER TABLE {_quoted(unlogged[0])} SET LOGGED; or rules: {{exclude: [...]}} in the pipeline file"
        yield Finding(Severity.WARNING, "unlogged", what, facts.label, do)
    keyless = [table for table in facts.tables if not table.key and not table.is_unlogged]
    if keyless:
        what = f"{_names(keyless)} {'has' if len(keyless) == 1 else 'have'} no key: rows are found by all their columns"
        do = f"ALTER TABLE {_quoted(keyless[0])} ADD PRIMARY KEY (...); or apply: {{tables: {{...: {{key: [...]}}}}}}"
        yield Finding(Severity.WARNING, "keyless", what, facts.label, do)
    if facts.tables and not unlogged and not keyless:
        what = f"{count(len(facts.tables), 'table')}, each with a key"
        yield Finding(Severity.OK, "tables", what, facts.label)


def lock_findings(facts: DatabaseFacts, tables: Sequence[TableFacts]) -> Iterator[Finding]:
    """Hold the server's table of locks against the tables of a pipeline: setup locks all of them in one transaction.

    Args:
        tables: Of the source; the target has as many.
    """
    per, sessions, prepared = (int(facts.settings.get(name, 0)) for name in _LOCKS)
    room = per * (sessions + prepared)
    # Each table and each partition with a key and its place for large values.
    needed = sum(_LOCKS_A_TABLE * (1 + table.partitions) for table in tables)
    if room and needed > room:
        enough = -(-2 * needed // (sessions + prepared))
        what = f"the server keeps {room} locks, and setup takes up to {needed} in one transaction"
        do = f"ALTER SYSTEM SET max_locks_per_transaction = {enough}; and start the server anew"
        yield Finding(Severity.WARNING, "max_locks", what, facts.label, do)


def pair_findings(source: DatabaseFacts, target: DatabaseFacts) -> Iterator[Finding]:
    """Say in what two databases differ that matters once the application has moved over."""
    where = f"{source.label}; {target.label}"
    if source.collation != target.collation:
        what = f"texts sort otherwise: {source.collation} at the source, {target.collation} at the target"
        do = "make the target with CREATE DATABASE ... TEMPLATE template0 and the source's encoding and locale"
        yield Finding(Severity.WARNING, "collation", what, where, do)
    if source.time_zone and target.time_zone and source.time_zone != target.time_zone:
        what = f"default time zones differ: {source.time_zone} at the source, {target.time_zone} at the target"
        do = f"at the target: ALTER DATABASE ... SET timezone TO '{source.time_zone}';"
        yield Finding(Severity.WARNING, "time_zone", what, where, do)


def _names(tables: Sequence[TableFacts]) -> str:
    named = ", ".join(str(table.name) for table in tables[:_NAMED])
    more = len(tables) - _NAMED
    return f"{named} and {count(more, 'other table')}" if more > 0 else named


def _quoted(table: TableFacts) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in (table.name.schema, table.name.name))
