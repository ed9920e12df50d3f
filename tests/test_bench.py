"""The benchmarks' own work: what they time has to be right."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from bench import dbwatcher, debezium

from penstock.formats.dbwatcher.transactions import TransactionWriter
from penstock.formats.dbwatcher.usual import read_usual
from penstock.formats.dbwatcher.writer import write_message


@pytest.mark.parametrize("with_schemas", [False, True])
def test_events_that_decoding_is_timed_with_are_all_placed_and_decoded(
    monkeypatch: pytest.MonkeyPatch, with_schemas: bool
) -> None:
    monkeypatch.setattr(debezium, "_ROWS", 50)
    monkeypatch.setattr(debezium, "_EVENTS", 50)

    for work in (debezium._place, debezium._decode):
        assert debezium._run(work, with_schemas) > 0


def test_messages_that_reading_is_timed_with_are_all_of_the_form_that_is_read_at_once() -> None:
    made = list(dbwatcher.transactions(20))
    written = [write_message(message) for message in TransactionWriter(lambda *_: dbwatcher.TABLE).messages(made)]

    found = [read_usual(message) for message in written]

    assert [len(message.rows) for message in found if message is not None] == [9, 9, 2]
    assert all(seconds >= 0 for seconds in dbwatcher._run(20)[0])


def test_folders_that_the_source_is_timed_with_are_read_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dbwatcher, "_SOURCE_CHANGES", 40)
    dbwatcher._write(tmp_path, 9, 2)

    with ProcessPoolExecutor(1) as processes:
        assert all(measured > 0 for measured in dbwatcher._read_folder(tmp_path, processes))
