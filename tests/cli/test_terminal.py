"""An entry of the error queue, and resolved conflicts, on a terminal of 80 columns."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from rich.console import Console

from penstock.apply.conflict_log import LoggedConflict
from penstock.apply.entry_rows import CurrentRow
from penstock.apply.error_queue import ErrorEntry
from penstock.change import Change, Op, TableName, Transaction
from penstock.cli import conflicts, console, error_view
from penstock.pipeline.errors import ShownEntry
from penstock.position import Scn

T = TableName("public", "customer")


class Unruled:
    """A pipeline whose tables are called alike on both sides."""

    def origins(self, _: TableName) -> tuple[()]:
        return ()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    shown = io.StringIO()
    made = Console(file=shown, force_terminal=True, width=80, highlight=False, soft_wrap=True, color_system=None)
    for module in (console, error_view, conflicts):
        monkeypatch.setattr(module, "out", made)
    return shown


def entry(change: Change) -> ErrorEntry:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    return ErrorEntry(
        id="shop.1",
        source="shop",
        txn_id="803",
        commit_scn=Scn(10),
        committed_at=at,
        message_number=1,
        message_count=1,
        error_number=26786,
        error_code=None,
        error_message="update finds other values in column note",
        found=None,
        table=change.table,
        op=change.op.value,
        created_at=at,
        recipient="penstock",
    )


def test_the_values_of_a_change_are_cut_so_that_its_lines_fit(terminal: io.StringIO) -> None:
    old, new, now = ({"id": "1", "a_column_with_a_long_name": letter * 500} for letter in "abc")
    change = Change(0, Op.UPDATE, T, 1, old, new)
    current = CurrentRow(change, now=now, differing=["a_column_with_a_long_name"])

    error_view.print_entry(
        ShownEntry(entry(change), Transaction(10, "803", None, [change]), [current]), cast("Any", Unruled())
    )

    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if line.startswith("     !  a_column_with_a_long_name  ")]
    assert [letter in line for letter in ("'aaaaaaaa", "'bbbbbbbb", "'cccccccc")] == [True] * 3


def test_a_resolved_conflict_is_two_lines_and_no_table_is_broken(terminal: io.StringIO) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    table = TableName("public", "customer_addresses_of_last_year")
    columns = ("street", "city", "country", "changed_at", "changed_by", "confirmed_by_post")
    one = LoggedConflict(1, at, table, "update", 0, "exists", "maximum", "discarded", columns, "7", Scn(4711), 1)

    conflicts.show([one], cast("Any", Unruled()))

    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.strip() for line in lines] == [
        "01-02 03:04:05  update public.customer_addresses_of_last_year, row exists:",
        "maximum, discarded",
        "street, city, country, changed_at, changed_by,",
        "confirmed_by_post, position 4711",
    ]
