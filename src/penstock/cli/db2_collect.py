"""`penstock db2-collect`: fill a folder with buffers of Db2's log."""

from __future__ import annotations

import signal
import threading
from contextlib import closing
from typing import Annotated

import typer

from penstock.cli.console import say, warn
from penstock.text import count


def db2_collect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The folder with catalog.json, or its url.")],
    connection: Annotated[
        str,
        typer.Option("--connection", envvar="DB2_CONNECTION", help="DSN=... or DATABASE=...;UID=...;PWD=..."),
    ],
    library: Annotated[str, typer.Option("--library", help="IBM's client library.")] = "libdb2.so.1",
    buffer_mib: Annotated[int, typer.Option("--buffer-mib", min=1, max=1024, help="The maximum size of a file.")] = 16,
    until_end: Annotated[bool, typer.Option("--until-end", help="Stop at the end of the log.")] = False,
    poll_s: Annotated[float, typer.Option("--poll", min=0.1, help="Seconds to wait at the end of the log.")] = 1.0,
) -> None:
    """Read Db2's log by db2ReadLog into files that `capture.source: db2_log` reads; goes on where it ended.

    Not run against a live Db2 server yet. Give the connection by the variable DB2_CONNECTION, so that no password is in
    the list of processes.
    """
    from penstock.sources.db2_log.client import Db2Client
    from penstock.sources.db2_log.collector import collect
    from penstock.storage import open_storage

    warn("note: db2-collect was not run against a live Db2 server yet")
    storage, stop = open_storage(path), threading.Event()
    for told in (signal.SIGINT, signal.SIGTERM):
        signal.signal(told, lambda *_: stop.set())
    with closing(Db2Client(connection, library=library, buffer_bytes=buffer_mib << 20)) as reader:
        for name, records in collect(reader, storage, stop, until_end=until_end, poll_s=poll_s):
            say(f"{name}: {count(records, 'record')}")
