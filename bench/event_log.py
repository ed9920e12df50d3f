"""Rows of an event log published as XDS files: how many a second, and what memory it takes.

    python -m bench.event_log [ROWS]

Two kinds of rows, one after the other: type 2, three to an object, and type 6, which asks for the row as it is now.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from contextlib import closing

import psycopg

from penstock.change import TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.source.event_log import PostgresEventLog
from penstock.dialects.postgres.source.event_log_setup import journal_step, log_step
from penstock.sinks.xds.folder import XdsFolder
from penstock.sources.event_log.channel import Channel
from penstock.sources.event_log.settings import EventLogSettings
from penstock.storage import open_storage

_FIELDS = """
INSERT INTO indirect.event_log (event_type, table_name, table_key, column_name, old_value, new_value)
SELECT 2, 'usr', 'idu=' || g / 3, (ARRAY['fname', 'lname', 'photo'])[1 + g % 3], 'QUJD', 'u7s='
FROM generate_series(0, {rows} - 1) g
"""

_NOW = """
INSERT INTO indirect.event_log (event_type, table_name, table_key)
SELECT 6, 'usr', 'idu=' || g FROM generate_series(0, {rows} - 1) g
"""

_TABLE = """
CREATE SCHEMA indirect;
CREATE TABLE indirect.usr (idu integer PRIMARY KEY, fname varchar(64), lname varchar(64), photo bytea);
INSERT INTO indirect.usr SELECT g, 'Jack' || g, 'Frost', '\\xaaaa' FROM generate_series(0, {rows} - 1) g;
ANALYZE indirect.usr
"""


def main() -> None:
    """Measure both kinds, and print a line for each."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    settings = EventLogSettings(TableName("indirect", "event_log"), batch_size=128)
    with EmbeddedPostgres() as server, psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(_TABLE.format(rows=rows))
        for step in (log_step(settings), journal_step("bench", settings.table)):
            connection.execute(step.sql)
        for name, statement in (("type 2", _FIELDS), ("type 6", _NOW)):
            connection.execute(statement.format(rows=rows))
            connection.execute("VACUUM ANALYZE indirect.event_log")
            _measure(name, server.url(), settings)
            connection.execute("TRUNCATE indirect.event_log")


def _measure(name: str, url: str, settings: EventLogSettings) -> None:
    log = PostgresEventLog(url, "bench", settings, ["indirect.*"])
    folder = XdsFolder(open_storage(tempfile.mkdtemp(prefix="penstock-bench-")))
    with closing(Channel(log, settings, folder.put_all)) as channel:
        channel.open()
        began, used, done = time.monotonic(), time.process_time(), 0
        while rows := channel.cycle()[0]:
            done += rows
            if done == rows:
                print(f"{name}: {_peak_mb()} MB after the first poll")
        took, cpu = time.monotonic() - began, time.process_time() - used
    print(f"{name}: {done / took:,.0f} rows/s, {1e6 * cpu / done:.1f} CPU µs a row in Python, {_peak_mb()} MB at most")


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
