"""Fills a folder with buffers, as `buffers` reads them: each file is complete when it appears, and never changes.

No state is kept beside them: after a restart the next file begins behind the last record of the last one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from penstock.errors import ConfigError, MalformedInputError, OperatorError
from penstock.sources.db2_log.buffers import Buffers
from penstock.sources.db2_log.client import Db2Client, Returned
from penstock.sources.db2_log.framing import BufferFormat, Framing, Level, LogRecord, Lri, read_records
from penstock.storage import NameTakenError, Storage


def collect(
    client: Db2Client, storage: Storage, stop: threading.Event, *, until_end: bool = False, poll_s: float = 1.0
) -> Iterator[tuple[str, int]]:
    """Write what the log holds until told to stop; yields the name of each file, once it is durable, and its records.

    Args:
        storage: Where the catalogue is, and what was collected so far.
        until_end: Return once the end of the log is reached.
        poll_s: How long to wait there.

    Raises:
        ConfigError: The catalogue says that the log is read in another way than here.
        MalformedInputError: What was returned is not what it is said to be; nothing of it was written.
        OperatorError: The log cannot be read, or another collector fills the same folder.
    """
    buffers = Buffers(storage)
    form = buffers.catalog.form
    if form.level is not Level.V10 or form.framing is not Framing.FILTER:
        raise ConfigError(
            "the collector reads with the filter on, from Db2 10.1 or later, and the catalogue says something else",
            where=f"{storage.label}/catalog.json",
        )
    number, last = buffers.last_record()
    start = client.begin() if last is None else last
    while not stop.is_set():
        returned = client.read(start)
        content, records = _behind(returned, form, last, f"what db2ReadLog returned for {tuple(start)}")
        if records:
            number += 1
            name = f"{number:09}.db2log"
            try:
                storage.create(name, content)
            except NameTakenError as exc:
                raise OperatorError(
                    f"there is a file {name} already", where=storage.label, do="let one collector alone fill a folder"
                ) from exc
            last = records[-1].lri
            yield name, len(records)
        elif not returned.is_end and returned.next <= start:
            raise OperatorError(f"db2ReadLog returned nothing, and is not at the end of the log, at {tuple(start)}")
        start = max(returned.next, start)
        if returned.is_end:
            if until_end:
                return
            stop.wait(poll_s)


def _behind(returned: Returned, form: BufferFormat, last: Lri | None, where: str) -> tuple[bytes, list[LogRecord]]:
    """Return the records that were not collected yet, and their bytes."""
    records = list(read_records(returned.content, form, where))
    if len(records) != returned.records:
        raise MalformedInputError(f"{len(records)} records, where there should be {returned.records}", where=where)
    new = [record for record in records if last is None or record.lri > last]
    return (returned.content[new[0].offset :] if new else b""), new
