"""The part `capture.event_log` of a pipeline file: which table is the log, and how it is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from penstock.config.document import Document, Fault
from penstock.config.parts import ConfigPart, Pattern, Table, table_named
from penstock.config.source import SourceKind
from penstock.formats.xds.values import TimeSyntax
from penstock.sources.event_log.settings import EventLogSettings

_TimeOfDay = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]$")]

_Statement = Annotated[str, Field(min_length=1)]

_Column = Literal[
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
]


class EventLogConfig(ConfigPart):
    """How an event log table is read."""

    table: Table = Field(description="The event log table, schema.table")
    create: bool = Field(default=False, description="setup makes the table where there is none")
    triggers: dict[Pattern, Literal["fields", "fields_now", "rows_now"]] = Field(
        default_factory=dict,
        description="setup makes triggers that write the log, for tables by patterns, the first that matches: fields"
        " logs old and new values (types 1, 2, 4), fields_now which columns changed (7, 8, 4), rows_now which rows"
        " (5, 6, 4)",
    )
    tables_in: str | None = Field(
        default=None, min_length=1, description="Schema of the tables that the log names; that of the log if absent"
    )
    columns: dict[_Column, str] = Field(
        default_factory=dict, description="What columns are called that do not have their documented name"
    )
    layout: Literal["A", "B"] | None = Field(
        default=None,
        description="Take the first ten columns by their order, whatever they are called; B has table_key second",
    )
    keys: dict[Table, list[str]] = Field(
        default_factory=dict, description="Key columns of views, and of tables without a primary key"
    )
    driver_user: str | None = Field(
        default=None,
        min_length=1,
        description="Whose rows are left alone as one's own; the user of the connection if absent",
    )
    force_username_case: Literal["upper", "lower"] | None = Field(
        default=None, description="Compare that user's name in this case with perpetrator; as it is if absent"
    )
    allow_loopback: bool = Field(default=False, description="Take that user's rows, too")
    future_events: bool = Field(
        default=False,
        description="Order by event_time, not record_id, and leave rows alone whose time has not come",
    )
    delete_processed: bool = Field(default=False, description="Delete rows instead of writing their status")
    keep_failed_rows: bool = Field(default=False, description="But keep those that failed, with status E or F")
    batch_size: int = Field(default=1, ge=1, le=128, description="Most events in an XDS document")
    query_limit: int = Field(default=10_000, ge=0, lt=2**31, description="Most rows of a poll; 0 takes all")
    polling_interval_s: float = Field(
        default=10, gt=0, le=604_800, description="Seconds from a poll that found nothing to the next one"
    )
    times_of_day: list[_TimeOfDay] = Field(
        default_factory=list, description="Poll at these times instead, hh:mm:ss in local time"
    )
    post_poll: list[_Statement] = Field(
        default_factory=list,
        description="SQL for the database of the log, run in order after each poll whose events were sent and settled",
    )
    time_syntax: Literal[1, 2, 3] = Field(
        default=1,
        description="XDS: dates and times as 1 seconds since 1970, 2 CCYYMMDDHHMMSSNNNNNNNNN, 3 yyyy-mm-dd hh:mm:ss.f",
    )
    event_ids: bool = Field(default=False, description="XDS: events carry the smallest record_id behind them")

    @model_validator(mode="after")
    def _is_sound(self) -> EventLogConfig:
        if self.columns and self.layout is not None:
            raise ValueError("columns goes by names, and layout by order; give one of them")
        return self

    @property
    def settings(self) -> EventLogSettings:
        """The same as the source takes it."""
        return EventLogSettings(
            table=table_named(self.table),
            tables_in=self.tables_in,
            columns={str(name): column for name, column in self.columns.items()},
            layout=self.layout,
            keys={table_named(name): tuple(columns) for name, columns in self.keys.items()},
            driver_user=self.driver_user,
            is_login_driver=True,
            username_case=self.force_username_case,
            allow_loopback=self.allow_loopback,
            future_events=self.future_events,
            delete_processed=self.delete_processed,
            keep_failed_rows=self.keep_failed_rows,
            batch_size=self.batch_size,
            query_limit=self.query_limit,
            time_syntax=TimeSyntax(self.time_syntax),
            event_ids=self.event_ids,
            polling_interval_s=self.polling_interval_s,
            times_of_day=tuple(map(_seconds_of_day, self.times_of_day)),
            post_poll=tuple(self.post_poll),
        )


def _seconds_of_day(text: str) -> int:
    hours, minutes, seconds = map(int, text.split(":"))
    return (hours * 60 + minutes) * 60 + seconds


def check_event_log(document: Document) -> list[Fault]:
    """Find what does not go with an event log, or is missing."""
    faults = document.unfit(
        {
            "capture.path": "an event log is read through a connection",
            "capture.row_triggers": "the triggers of an event log are not Penstock's",
            "capture.changes_of": "capture.event_log.allow_loopback says whose rows are taken",
            "rules": "rules do not go with capture.source event_log",
        }
    )
    faults += document.missing("capture", ["connection", "event_log"])
    publish = document.value("publish")
    if isinstance(publish, dict) and publish.get("format") != "xds":
        faults.append(Fault(document.line(("publish",)), "publish.format: an event log is published as xds"))
    return faults


EVENT_LOG = SourceKind(
    "event_log", "from a table that other products' triggers fill", check_event_log, connects_to="database"
)
