"""A folder of files with Debezium's change events as the place that a pipeline publishes to."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.change import TableName
from penstock.dialects.base import SetupStep
from penstock.formats.debezium.writer import EventSettings
from penstock.history import HistoryWording
from penstock.outputs.events.files import Folder
from penstock.outputs.events.publisher import make_position
from penstock.outputs.events.put_aside import OnBadValue
from penstock.pipeline.event_sink import EventSink
from penstock.pipeline.sink import Sink


class EventFileSink(EventSink):
    """Implements `sink.Sink`."""

    def __init__(
        self,
        folder: Folder,
        settings: EventSettings,
        *,
        max_age_s: float,
        on_bad_value: OnBadValue = OnBadValue.STOP,
    ) -> None:
        """Publish the folder's pipeline; nothing is touched yet."""
        super().__init__(folder, settings, max_age_s=max_age_s, on_bad_value=on_bad_value)
        self._folder = folder

    @property
    def words(self) -> HistoryWording:
        """How messages speak of the files."""
        return HistoryWording(
            noun="folder of events",
            other="give publish.path another folder",
            anew="`penstock teardown`, then `penstock setup` with another publish.path, begins with a new first copy",
            shown=f"the lines of its files, in {self.label}, are what it has published",
        )

    def check(self) -> None:
        """Refuse a folder that cannot be written to."""
        self._folder.storage.check_writable(".")

    def steps(self, tables: Sequence[TableName]) -> Sequence[SetupStep]:
        """A step where nothing was published yet."""
        if self.is_made():
            return []
        return [SetupStep("a folder of change events", "-- a folder, which `penstock setup` makes")]

    def make(self, source: str, tables: Sequence[TableName]) -> None:
        """Write the first file, which only says of which pipeline the folder is."""
        if not self.is_made():
            make_position(self._folder, source)


_: type[Sink] = EventFileSink
