"""How an event log table is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.change import TableName
from penstock.formats.xds.values import TimeSyntax

COLUMNS = (
    "record_id",
    "status",
    "event_type",
    "event_time",
    "perpetrator",
    "table_name",
    "table_key",
    "column_name",
    "old_value",
    "new_value",
)
"""The columns of a log by the names that they have where nobody has chosen others, in the order of layout A."""

LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "A": COLUMNS,
    "B": ("record_id", "table_key", *(name for name in COLUMNS if name not in ("record_id", "table_key"))),
}
"""The two orders in which the columns of a log are documented."""


@dataclass(frozen=True)
class EventLogSettings:
    """How an event log table is read, and what becomes of its rows.

    Attributes:
        table: The log.
        tables_in: The schema of the tables that the log names; that of the log itself if None.
        columns: What columns are called that have another name than in `COLUMNS`.
        layout: Take the first ten columns of the table in this order, whatever they are called; None goes by names.
        keys: The key columns of views, and of other tables whose catalogue entry has no primary key.
        driver_user: The user whose own rows are left alone; None is nobody, unless `is_login_driver`.
        is_login_driver: Where `driver_user` is not said, it is whoever logs in to read the log.
        username_case: Take that user's name in this case, as rows may have it: `upper`, `lower`, or as it is if None.
        allow_loopback: Publish that user's rows, too.
        future_events: Order by `event_time`, and leave rows alone whose time has not come.
        delete_processed: Delete rows instead of writing their status, but for those that failed if `keep_failed_rows`.
        batch_size: Most events in a document.
        query_limit: Most rows of a poll; 0 takes all of them.
        event_ids: Have each event carry the smallest record_id behind it.
        polling_interval_s: Seconds from a poll that found nothing to the next one.
        times_of_day: Poll at these times instead, as seconds since midnight, local time of the machine.
        post_poll: Statements for the database of the log, run when the rows of a poll that had events are settled.
    """

    table: TableName
    tables_in: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    layout: str | None = None
    keys: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    driver_user: str | None = None
    is_login_driver: bool = False
    username_case: str | None = None
    allow_loopback: bool = False
    future_events: bool = False
    delete_processed: bool = False
    keep_failed_rows: bool = False
    batch_size: int = 1
    query_limit: int = 10_000
    time_syntax: TimeSyntax = TimeSyntax.SECONDS
    event_ids: bool = False
    polling_interval_s: float = 10
    times_of_day: tuple[int, ...] = ()
    post_poll: tuple[str, ...] = ()

    @property
    def schema(self) -> str:
        """Where the tables are that the log names."""
        return self.tables_in or self.table.schema

    @property
    def suppressed_user(self) -> str | None:
        """The user whose rows are not read; None reads everybody's."""
        if self.allow_loopback or self.driver_user is None:
            return None
        user = self.driver_user.rstrip(" ")
        match self.username_case:
            case "upper":
                return user.upper()
            case "lower":
                return user.lower()
            case _:
                return user
