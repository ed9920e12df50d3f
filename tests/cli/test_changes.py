"""`penstock changes`: what a person, and a program, see of an archive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.formats.change_file import Encoding
from penstock.position import Scn
from penstock.sinks.archive.files import ArchiveWriter, FileWriter, make_archive
from penstock.storage import LocalStorage
from tests.archives import BOOK, EVERYTHING, publish, row, stream
from tests.program import Done, Program


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path, "", "", name="shop")


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """The story, and one more transaction that has everything."""
    storage = LocalStorage(tmp_path / "archive")
    publish(storage)
    run = ArchiveWriter(storage)
    files = FileWriter(storage, Encoding.CHANGES, run.acquire().epoch)
    changes = [
        row(20, 0, of=4, table=BOOK, after={"id": "0", "name": "it's :smile: [b]"}),
        row(20, 1, of=4, op="update", before={"id": "1", "name": "old", "same": "s"}, after={"name": None}),
        row(20, 2, of=4, op="delete", before={"id": "2", "name": "gone\n"}, after=None),
        row(20, 3, of=4, op="truncate", table=BOOK, key=None, after=None),
    ]
    run.commit(Scn(20), files.write_changes([stream(changes)]))
    return "archive"


def positions(done: Done) -> list[tuple[int, int]]:
    assert done.code == 0, done.err
    changes = [json.loads(line) for line in done.out.splitlines()]
    return [(change["commit_scn"], change["change_seq"]) for change in changes if change["op"] != "snapshot"]


def test_a_person_sees_one_block_per_transaction(program: Program, archive: str) -> None:
    done = program("changes", archive, "--from", "20")
    assert done.code == 0, done.err
    assert done.out == (
        "position 20  transaction t20  2024-01-02 12:00:20 UTC  4 changes\n"
        "  1 insert public.book id='0'\n"
        '      name: "it\'s :smile: [b]"\n'
        "  2 update public.item id='1'\n"
        "      name: 'old' => NULL\n"
        "  3 delete public.item id='2'\n"
        "      name: 'gone\\n'\n"
        "  4 truncate public.book\n"
    )


def test_the_first_copy_comes_before_what_follows_it(program: Program, archive: str) -> None:
    done = program("changes", archive, "--until", "1")
    assert done.out == (
        "position 0  copy of public.item\n"
        "  row id='0'\n      name: 'copied'\n"
        "  row id='1'\n      name: 'copied'\n"
        "  row id='2'\n      name: 'copied'\n"
        "\n"
        "position 1  transaction t1  2024-01-02 12:00:01 UTC  1 change\n"
        "  1 insert public.item id='0'\n"
        "      name: 'n1'\n"
    )


def test_a_program_gets_json_lines(program: Program, archive: str) -> None:
    done = program("changes", archive, "--json", "--until", "13")
    assert positions(done) == EVERYTHING
    assert json.loads(done.out.splitlines()[0]) == {
        "source": "shop",
        "txn_id": "t0",
        "commit_scn": 0,
        "change_seq": 0,
        "txn_changes": 1,
        "committed_at": "2024-01-02T12:00:00.000000Z",
        "op": "snapshot",
        "schema_name": "public",
        "table_name": "item",
        "table_version": 1,
        "key": {"id": "0"},
        "after": {"id": "0", "name": "copied"},
    }


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        (["--from", "2"], 2, 20),
        (["--from", "3", "--until", "8"], 5, 7),
        (["--until", "4"], 1, 2),
        (["--from", "2024-01-02T12:00:05"], 5, 20),
        (["--from", "2024-01-02T12:00:05.000001+00:00"], 6, 20),
        (["--until", "2024-01-02T12:00:07Z"], 1, 7),
        (["--until", "2024-01-02T13:00:07+01:00"], 1, 7),
    ],
)
def test_a_stretch(options: list[str], first: int, last: int, program: Program, archive: str) -> None:
    found = positions(program("changes", archive, "--json", *options))
    assert found == [*((s, n) for s, n in [*EVERYTHING, *((20, n) for n in range(4))] if first <= s <= last)]


@pytest.mark.parametrize("options", [["--from", "21"], ["--from", "2024-02-01"], ["--until", "2023-01-01"]])
def test_a_stretch_without_anything(options: list[str], program: Program, archive: str) -> None:
    done = program("changes", archive, "--json", *options)
    assert positions(done) == []
    # The copy lies before all times.
    assert done.out or done.err == "note: nothing matches; the archive ends at position 20\n"


def test_only_some_tables(program: Program, archive: str) -> None:
    done = program("changes", archive, "--table", "*.book", "--json")
    assert positions(done) == [(20, 0), (20, 3)]
    assert done.err == ""


def test_a_table_that_the_archive_does_not_have_is_named(program: Program, archive: str) -> None:
    done = program("changes", archive, "--table", "*.book", "--table", "public.boko", "--json")
    assert positions(done) == [(20, 0), (20, 3)]
    assert done.err == "note: the archive has no table like 'public.boko'\n"


def test_an_archive_to_which_nothing_was_published(program: Program, tmp_path: Path) -> None:
    make_archive(LocalStorage(tmp_path / "archive"), "shop", Encoding.CHANGES)
    done = program("changes", "archive")
    assert (done.code, done.out) == (0, "")
    assert done.err == "note: nothing was published to this archive yet\n"


def test_what_is_no_position_time_or_pattern(program: Program, archive: str) -> None:
    for option, value in (("--from", "yesterday"), ("--until", "-1"), ("--until", "9" * 5_000)):
        done = program("changes", archive, f"{option}={value}")
        assert (done.code, done.out) == (2, "")
        assert f"{option} must be a position or a time, not '{value}'" in done.err
    assert program("changes", archive, "--table", "book").code == 2


def test_no_archive(program: Program) -> None:
    done = program("changes", "nowhere")
    assert done.code == 3
    assert "there is no change archive" in done.err
    assert "nowhere/archive.json" in done.err
    assert program("changes", "http://example.org/archive").code == 2


def test_a_file_that_was_cut_short(program: Program, archive: str, tmp_path: Path) -> None:
    bad = sorted((tmp_path / archive / "changes").iterdir())[-1]
    bad.write_bytes(bad.read_bytes()[:-1])
    done = program("changes", archive, "--json")
    assert done.code == 3
    assert "a file of the archive was cut short" in done.err
    assert f"{bad.name}, positions 20 to 20" in done.err
    assert [json.loads(line)["commit_scn"] for line in done.out.splitlines()][-1] == 13
