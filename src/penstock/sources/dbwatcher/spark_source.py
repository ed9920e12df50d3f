"""DbWatcher's messages as a Spark data source, for streams and for batches: `format("penstock.dbwatcher")`.

Options: `path` of the folder with the messages, `source` (what the column of that name says, default: `dbwatcher`),
`defaultSchema` (of tables of which messages name none, default: `public`), `statements` (`refuse`, the default, or
`rows`), `missingMessages` (`stop`, the default, or `accept`), `startingPosition` (what lies behind it, default:
everything), `endingPosition` (default: all that is there by now). A position is a number, or a time of commit, which is
when a file was written.

Columns of tables that no CREATE message describes have the text that the message has. Rows come in no order:
`commit_scn` and `change_seq` have it. A batch of a stream holds whole transactions. A message that cannot be read ends
the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from penstock.errors import ConfigError
from penstock.sources.dbwatcher.folder import FolderMessages
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.source import Messages
from penstock.sources.recorded_stream import RecordedStream
from penstock.spark.change_source import ChangeDataSource, ChangeStream
from penstock.spark.offsets import StreamOffsets
from penstock.storage import open_storage

_STATEMENTS = ("refuse", "rows")
_MISSING = ("stop", "accept")


class DbWatcherSource(ChangeDataSource):
    """The data source."""

    FORMAT = "penstock.dbwatcher"
    OPTIONS = (
        "path",
        "source",
        "defaultSchema",
        "statements",
        "missingMessages",
        "startingPosition",
        "endingPosition",
    )

    @staticmethod
    def stream(options: Mapping[str, str]) -> ChangeStream:
        """Say what options mean."""
        statements = options.get("statements", "refuse")
        if statements not in _STATEMENTS:
            raise ConfigError(f"option 'statements' must be one of {', '.join(_STATEMENTS)}, not {statements!r}")
        missing = options.get("missingMessages", "stop")
        if missing not in _MISSING:
            raise ConfigError(f"option 'missingMessages' must be one of {', '.join(_MISSING)}, not {missing!r}")
        reading = Reading(
            options.get("defaultSchema", "public"),
            applies_statement_rows=statements == "rows",
            accepts_missing=missing == "accept",
        )
        messages = Messages(FolderMessages(open_storage(options["path"])), (), reading)
        return _MessageStream(messages, options, source="dbwatcher", readable=messages.readable)


class _MessageStream(RecordedStream):
    OFFSETS: ClassVar = StreamOffsets("DbWatcher's messages", "folder", "commit_scn")
    MAY_LAG: ClassVar = False
