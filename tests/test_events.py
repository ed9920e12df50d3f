"""Lines of the log that are alike are counted; none is lost."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.apply.error_queue import ErrorEntry
from penstock.change import TableName
from penstock.events import AlikeLines, Event, SourceFacts
from penstock.pipeline.report import Report


class Clock:
    """Time that goes on where a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Lines(list[tuple[str, object]]):
    """The texts of lines, and how many more each speaks for."""

    def __call__(self, event: Event, text: str, facts: SourceFacts) -> None:
        self.append((text, facts["more"]))


def test_the_first_line_of_a_kind_is_said_at_once_and_later_ones_once_a_second() -> None:
    clock, said = Clock(), Lines()
    lines = AlikeLines(said, clock=clock)

    for number in range(500):
        clock.now += 1 / 256
        lines.add("a", Event.NOTE, f"line {number}", {})
    lines.add("b", Event.NOTE, "another kind", {})
    lines.say_all()

    assert [more for _, more in said] == [0, 254, 0, 243]
    # Each says one, and speaks for others.
    assert sum(1 + more for _, more in said if isinstance(more, int)) == 501
    assert said[0][0] == "line 0"
    assert said[1][0] == "line 255 (and 254 more like it in the last 1.0 s)"
    assert said[2][0] == "another kind"


def test_what_is_counted_is_said_when_its_second_is_over_although_nothing_follows() -> None:
    clock, said = Clock(), Lines()
    lines = AlikeLines(said, clock=clock)
    for number in range(3):
        lines.add("a", Event.NOTE, f"line {number}", {})

    lines.say_due()
    assert len(said) == 1
    clock.now += 1
    lines.say_due()
    assert said[1:] == [("line 2 (and 1 more like it in the last 1.0 s)", 1)]

    # After a second without any, the next one is no sequel.
    clock.now += 1
    lines.add("a", Event.NOTE, "much later", {})
    assert said[2:] == [("much later", 0)]


def entry(number: int, table: str = "orders") -> ErrorEntry:
    return ErrorEntry(
        id=f"shop.{number}",
        source="shop",
        txn_id=str(number),
        commit_scn=number,  # type: ignore[arg-type]
        committed_at=None,
        message_number=1,
        message_count=1,
        error_number=26786,
        error_code=None,
        error_message="update finds other values in column 'v'",
        found={"v": "secret"},
        table=TableName("public", table),
        op="update",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        recipient=None,
    )


@pytest.mark.parametrize("end", ["ended", "close"])
def test_a_storm_is_a_line_a_second_of_each_table_and_error(caplog: pytest.LogCaptureFixture, end: str) -> None:
    clock = Clock()
    report = Report(clock=clock)

    with caplog.at_level("INFO", logger="penstock"):
        for number in range(1, 2001):
            clock.now += 0.001
            report.queued(entry(number))
            if number % 100 == 0:
                report.queued(entry(number, "items"))
        getattr(report, end)()

    told = [record for record in caplog.records if record.event == Event.TRANSACTION_QUEUED]  # type: ignore[attr-defined]
    assert len(told) <= 6
    assert sum(1 + record.facts["more"] for record in told) == 2020  # type: ignore[attr-defined]
    last = told[-1].getMessage() if "items" not in told[-1].getMessage() else told[-2].getMessage()
    assert "went to the error queue: change 1 of 1, update of public.orders: error 26786" in last
    assert "more like it in the last" in last
    assert "secret" not in caplog.text
