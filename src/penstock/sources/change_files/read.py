"""A stretch of an archive for people and programs: what `penstock changes` prints, and `Pipeline.changes` returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.archive import Archive
from penstock.change_table import RecordedChanges
from penstock.patterns import TablePattern
from penstock.sources.change_files.reader import only_tables
from penstock.sources.change_files.span import Bound, find_span, read_span
from penstock.storage import open_storage


def read_archive(
    path: str,
    since: str | None,
    until: str | None,
    tables: Sequence[str],
    *,
    options: tuple[str, str] = ("since", "until"),
) -> RecordedChanges:
    """The changes of an archive between two bounds; see `Capturing.changes` for the parameters.

    Args:
        options: What a message calls the bounds.

    Raises:
        ConfigError: The path, a bound or a pattern cannot be read.
    """
    storage = open_storage(path)
    patterns = [TablePattern.parse(text) for text in tables]
    begin = None if since is None else Bound.parse(since, option=options[0])
    end = None if until is None else Bound.parse(until, option=options[1])

    def read() -> Iterator[pa.RecordBatch]:
        archive = Archive(storage)
        for batch in read_span(archive, find_span(archive, begin, end)):
            yield only_tables(batch, lambda table: not patterns or any(one.matches(table) for one in patterns))

    return RecordedChanges(storage.label, read)
