"""Pages of a long error queue: in commit order, without a gap, and as quick at its end as at its beginning."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from penstock.apply.error_queue import EntryPlace, EntrySelection, ErrorEntry
from penstock.change import TableName
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.patterns import TablePattern
from penstock.pipeline.errors import ErrorFilter, Errors
from tests.lab import Lab

ENTRIES = 100_000
PAGE = 50

FILL = """
INSERT INTO penstock.error (process, txn_id, commit_scn, committed_at, message_number, message_count, error_number,
  error_code, error_message, created_at)
SELECT %(process)s, n, (n * 7919) %% %(entries)s, now(), 1, 1, CASE WHEN n %% 1000 = 0 THEN 1403 ELSE 1 END, '23505',
  CASE WHEN n %% 1000 = 0 THEN 'No Row' ELSE 'unique key' END, timestamptz '2026-01-01' + n * interval '1 s'
FROM generate_series(1, %(entries)s) n
"""
FILL_CHANGES = """
INSERT INTO penstock.error_change (process, error_id, message_number, op, schema_name, table_name, table_version,
  change_seq, after)
SELECT process, id, 1, 'insert', 'public', CASE WHEN id %% 5000 = 0 THEN 'rare' ELSE 'common' END, 1, 1, '{"id": "1"}'
FROM penstock.error WHERE process = %(process)s
"""


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    return lab


def fill(lab: Lab, entries: int) -> PostgresErrorQueue:
    for statement in (FILL, FILL_CHANGES):
        lab.target.execute(statement, {"process": lab.name, "entries": entries})
    lab.target.execute("ANALYZE penstock.error, penstock.error_change")
    return PostgresErrorQueue(lab.target_url, lab.name)


def forward(queue: PostgresErrorQueue, most: int) -> Iterator[list[ErrorEntry]]:
    after = None
    while page := list(queue.entries(EntrySelection(after=after, most=most))):
        yield page
        after = page[-1].place


def test_pages_one_after_the_other_hold_each_entry_once_in_commit_order(lab: Lab) -> None:
    queue = fill(lab, 23)

    pages = list(forward(queue, 10))

    whole = [entry.id for entry in queue.entries()]
    assert [len(page) for page in pages] == [10, 10, 3]
    assert [entry.id for page in pages for entry in page] == whole
    before = queue.entries(EntrySelection(before=pages[1][0].place, most=10))
    assert [entry.id for entry in before] == [entry.id for entry in pages[0]]
    assert queue.places([whole[3], f"{lab.name}.999"]) == {whole[3]: pages[0][3].place}


def test_a_page_of_a_hundred_thousand_entries_takes_less_than_a_fifth_of_a_second(lab: Lab) -> None:
    """Filling the queue takes a second."""
    queue = fill(lab, ENTRIES)
    queue.entries(EntrySelection(most=1))
    last = EntryPlace(ENTRIES - PAGE, 0)
    wanted = {
        "first": EntrySelection(most=PAGE),
        "behind the middle": EntrySelection(after=EntryPlace(ENTRIES // 2, 0), most=PAGE),
        "last": EntrySelection(after=last, most=PAGE),
        "before the last": EntrySelection(before=last, most=PAGE),
        "by error": EntrySelection(errors=["1403"], most=PAGE),
        "by text": EntrySelection(text="no row", most=PAGE),
    }
    for name, selection in wanted.items():
        began = time.perf_counter()
        page = queue.entries(selection)
        took = time.perf_counter() - began
        assert len(page) >= PAGE - 1, name
        assert took < 0.2, f"{name}: {took:.3f} s"
    assert queue.count() == ENTRIES
    assert queue.count(wanted["by error"]) == ENTRIES // 1000


def test_what_a_person_filters_by_is_found_by_the_server(lab: Lab) -> None:
    errors = Errors(fill(lab, 10_000), lambda table: [TableName("old", table.name)], {})
    at = datetime(2026, 1, 1, 0, 50, tzinfo=UTC)

    def number(wanted: ErrorFilter) -> int:
        found = errors.entries(wanted)
        assert errors.count(wanted) == len(found)
        assert all(wanted.fits(entry, [TableName("public", "rare"), TableName("old", "rare")]) for entry in found)
        return len(found)

    assert number(ErrorFilter(tables=[TablePattern.parse("public.ra*")])) == 2
    assert number(ErrorFilter(tables=[TablePattern.parse("old.rare")])) == 2
    assert number(ErrorFilter(tables=[TablePattern.parse("public.none")])) == 0
    assert number(ErrorFilter(errors=["1403"])) == 10
    assert number(ErrorFilter(errors=["23505"], text="NO ROW")) == 10
    assert number(ErrorFilter(text="100%")) == 0
    assert number(ErrorFilter(since=at, errors=["1403"])) == 8
    assert number(ErrorFilter(until=at, errors=["1403"])) == 3
