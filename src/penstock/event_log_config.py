"""The part `capture.event_log` of a pipeline file: which table is the log, and how it is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from penstock.config_parts import ConfigPart, Pattern, Table

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
