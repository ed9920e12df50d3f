"""Feeding a place to publish to from a source: what is the same for every place."""

from __future__ import annotations

import time

from penstock.apply.lag import LagHistogram
from penstock.apply.process import TablesAddedError
from penstock.apply.server import LaneResult
from penstock.pipeline.feed import Definitions, SourceFeed
from penstock.pipeline.place import Following
from penstock.stream import Reader, Slice


class PublishedFeed(SourceFeed):
    """The half of a feed that is about the source; a subclass publishes."""

    def __init__(self, following: Following, *, definitions: Definitions) -> None:
        """Prepare; nothing is opened yet."""
        super().__init__(
            following.open_source,
            follow_source=following.follow_source,
            is_meant=following.is_meant,
            definitions=definitions,
        )
        self._following = following

    def _reader(self) -> Reader:
        """A reader of the tables that are followed now.

        Raises:
            TablesAddedError: The rows of some were not published yet.
        """
        following = self._following
        if following.uncopied(self._versions):
            raise TablesAddedError("tables were made anew or renamed; they are copied first")
        # Changes committed before a table was renamed are published under its earlier name.
        ids = {v.id for v in self._versions if v.table.name in self._known or v.root in self._known}
        names = {v.table.name for v in self._versions if v.id in ids}
        return following.access.reader(following.source, self._versions, follows=self._known | names)


def published(part: Slice) -> LaneResult:
    """What is counted of a slice that was published whole."""
    lag = LagHistogram()
    lag.add(time.time_ns() // 1_000 - part.committed_at_us)
    return LaneResult(transactions=len(part), changes=part.total_changes, lag=lag)
