"""The edge of a poll cuts no change: rows of several writers lie in turns, and a poll may take any number of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from penstock.formats.xds.event import XdsEvent
from penstock.formats.xds.reader import read_document
from penstock.pipeline.pipeline import Pipeline
from tests.lab import Lab
from tests.stories.test_event_log import Log, run

COLUMNS = ("fname", "lname", "photo")

LIMITS = (1, 2, 3, 4, 7)


@pytest.fixture
def log(lab: Lab, tmp_path: Path) -> Log:
    folder = tmp_path / "xds"
    folder.mkdir()
    return Log(lab, folder)


def write_in_turns(log: Log, writers: Sequence[Sequence[tuple[int, str, str]]]) -> None:
    """Write rows of several transactions in turns: type, key and column of each."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(psycopg.connect(log.lab.source_url)) for _ in writers]
        for turn in range(max(map(len, writers))):
            for session, rows in zip(sessions, writers, strict=True):
                for type_, key, column in rows[turn : turn + 1]:
                    value = None if type_ > 4 else "QUJD"
                    session.execute(
                        "INSERT INTO indirect.event_log (event_type, table_name, table_key, column_name, new_value)"
                        " VALUES (%s, 'usr', %s, %s, %s)",
                        [type_, key, column, value],
                    )


def inserts(type_: int, *ids: int) -> list[tuple[int, str, str]]:
    return [(type_, f"idu={id_}", column) for id_ in ids for column in COLUMNS]


def events(log: Log) -> list[XdsEvent]:
    return [event for document in log.documents.values() for event in read_document(document)]


def told(event: XdsEvent) -> tuple[str, str, list[str]]:
    return event.kind.value, event.association.partition(",")[0], sorted(one.name for one in event.attributes)


@pytest.mark.rule("E-23")
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("type_", [1, 7])
def test_an_insert_is_one_add_wherever_a_poll_ends(log: Log, type_: int, limit: int) -> None:
    publication = log.publication(f", query_limit: {limit}")
    publication.setup()
    log.lab.source.execute("INSERT INTO indirect.usr SELECT g, 'Ann', 'Lee', '\\xaa' FROM generate_series(1, 6) g")
    write_in_turns(log, [inserts(type_, 1, 2), inserts(type_, 3), inserts(type_, 4, 5, 6)])

    run(publication)

    assert sorted(map(told, events(log))) == [("add", f"idu={id_}", sorted(COLUMNS)) for id_ in range(1, 7)]
    assert log.statuses == "S" * 18


@pytest.mark.rule("E-23")
@pytest.mark.parametrize("limit", LIMITS)
def test_an_insert_is_applied_whole_wherever_a_poll_ends(log: Log, limit: int) -> None:
    pipeline = log.open("apply: {connection: copy}\n", f", query_limit: {limit}, triggers: {{indirect.usr: fields}}")
    assert isinstance(pipeline, Pipeline)
    pipeline.setup()
    source = log.lab.source
    with psycopg.connect(log.lab.source_url) as other:
        other.execute("INSERT INTO indirect.usr VALUES (1, 'Ann', 'Lee', '\\xaa')")
        source.execute("INSERT INTO indirect.usr SELECT g, 'Bob', 'Ray', '\\xbb' FROM generate_series(2, 4) g")
        other.execute("INSERT INTO indirect.usr VALUES (5, 'Eve', 'Fox', '\\xcc')")
    source.execute("UPDATE indirect.usr SET fname = fname || '!', lname = 'X' WHERE idu < 4")
    source.execute("DELETE FROM indirect.usr WHERE idu = 2")
    source.execute("INSERT INTO indirect.usr VALUES (2, 'Zoe', 'New', '\\xdd')")

    run(pipeline)

    assert log.lab.errors() == []
    log.lab.assert_identical("indirect.usr")


@pytest.mark.rule("E-23")
def test_a_writer_that_was_kept_waiting_ends_its_change_far_behind(log: Log) -> None:
    publication = log.publication(", query_limit: 5")
    publication.setup()
    with psycopg.connect(log.lab.source_url) as slow:
        first, *rest = inserts(1, 1)
        insert = (
            "INSERT INTO indirect.event_log (event_type, table_name, table_key, column_name) VALUES (%s, 'usr', %s, %s)"
        )
        slow.execute(insert, first)
        write_in_turns(log, [inserts(1, *range(2, 40))])
        for row in rest:
            slow.execute(insert, row)

    run(publication)

    assert Counter(told(event)[:2] for event in events(log)) == {("add", f"idu={id_}"): 1 for id_ in range(1, 40)}


@pytest.mark.rule("E-23")
def test_updates_of_one_transaction_are_one_modify_and_those_of_a_later_one_keep_their_place(log: Log) -> None:
    publication = log.publication(", query_limit: 1")
    publication.setup()
    write_in_turns(log, [[(2, "idu=1", "fname"), (2, "idu=1", "lname")], [(2, "idu=2", "fname")]])
    log.write(2, "idu=1", "photo", None, "QUJD")
    log.write(4, "idu=2")

    run(publication)

    assert [told(event) for event in events(log)] == [
        ("modify", "idu=1", ["fname", "lname"]),
        ("modify", "idu=2", ["fname"]),
        ("modify", "idu=1", ["photo"]),
        ("delete", "idu=2", []),
    ]


@pytest.mark.rule("E-23")
def test_rows_that_follow_each_other_are_one_change_whoever_wrote_them(log: Log) -> None:
    publication = log.publication(", query_limit: 2")
    publication.setup()
    for column in COLUMNS:
        log.write(2, "idu=1", column, None, "QUJD")
    log.write(2, "idu=1", "fname", "QUJD", "QUJE")

    run(publication)

    assert [told(event) for event in events(log)] == [
        ("modify", "idu=1", sorted(COLUMNS)),
        ("modify", "idu=1", ["fname"]),
    ]


@pytest.mark.rule("E-23")
def test_an_object_that_is_deleted_and_made_again_is_told_in_that_order(log: Log) -> None:
    publication = log.publication(", query_limit: 2")
    publication.setup()
    write_in_turns(log, [[*inserts(1, 1), (4, "idu=1", "fname"), *inserts(1, 1)]])

    run(publication)

    assert [told(event)[0] for event in events(log)] == ["add", "delete", "add"]
    assert log.statuses == "S" * 7


@pytest.mark.rule("E-23")
def test_by_time_the_edge_lies_between_times(log: Log) -> None:
    publication = log.publication(", query_limit: 2, future_events: true")
    publication.setup()
    log.lab.source.execute(
        "INSERT INTO indirect.event_log (record_id, event_time, event_type, table_name, table_key, column_name)"
        " SELECT 100 - 10 * at - g, '2024-01-01'::timestamp + make_interval(secs => 10 * at + g), 1, 'usr',"
        " 'idu=' || g, (ARRAY['fname', 'lname', 'photo'])[at] FROM generate_series(1, 3) at, generate_series(1, 3) g"
    )

    run(publication)

    assert [told(event) for event in events(log)] == [("add", f"idu={id_}", []) for id_ in (1, 2, 3)]


@pytest.mark.rule("E-23")
def test_a_table_is_the_same_in_whatever_case_the_database_knows(log: Log) -> None:
    """Of letters beyond ASCII a database in locale C knows no lower case, and names are found without it."""
    publication = log.publication(", query_limit: 1")
    log.lab.source.execute('CREATE TABLE indirect."größe" (idg int PRIMARY KEY, a text, b text)')
    publication.setup()
    for column in ("a", "b"):
        log.write(1, "idg=1", column, None, "x", table="GRÖSSE")
        log.write(2, f"idu={ord(column)}", "fname", None, "y")

    run(publication)

    (added,) = [one for one in events(log) if one.kind.value == "add"]
    assert sorted(one.name for one in added.attributes) == ["a", "b"]
