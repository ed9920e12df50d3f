"""Db2's log as a Spark data source, for streams and for batches: `format("penstock.db2_log")`.

Options: `path` of the folder with the catalogue and the buffers, `source` (what the column of that name says, default:
the `id` of the catalogue), `startingPosition` (what lies behind it, default: everything), `endingPosition` (default:
all that is there by now). A position is a number, or a time of commit.

A task reads what is committed in one file. Rows come in no order: `commit_scn` and `change_seq` have it. A batch of a
stream holds whole transactions. A LOB with more than 1 MiB of data is not in its image, which says where it is: see
`penstock.external_values`, and `LogValues`, which reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from penstock.sources.db2_log.buffers import Buffers
from penstock.sources.db2_log.source import Db2Log
from penstock.sources.recorded_stream import RecordedStream
from penstock.spark.change_source import ChangeDataSource, ChangeStream
from penstock.spark.offsets import StreamOffsets
from penstock.storage import open_storage


class Db2LogSource(ChangeDataSource):
    """The data source."""

    FORMAT = "penstock.db2_log"
    OPTIONS = ("path", "source", "startingPosition", "endingPosition")

    @staticmethod
    def stream(options: Mapping[str, str]) -> ChangeStream:
        """Say what options mean."""
        log = Db2Log(Buffers(open_storage(options["path"])))
        return _LogStream(log, options, source=log.id, readable=log)


class _LogStream(RecordedStream):
    OFFSETS: ClassVar = StreamOffsets("Db2's log", "log", "commit_scn")
    MAY_LAG: ClassVar = True
