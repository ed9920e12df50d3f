"""A folder of events is a log only as long as its files stay what they are, and new ones come behind them."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import OperatorError
from penstock.history import HistoryError
from penstock.sources.debezium.files import LINES, FileLog
from penstock.storage import LocalStorage

NAMES = ("0001.jsonl", "0002.jsonl", "0003.jsonl")


def line(text: str) -> str:
    return f'{{"topic": "shop.public.t", "key": null, "value": {{"n": "{text}"}}}}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).write_text(line(name) * 2)
    return tmp_path


def log(folder: Path) -> FileLog:
    return FileLog(LocalStorage(folder))


def proof(folder: Path, lines: int) -> dict[str, str]:
    of = log(folder)
    of.extents()
    return dict(of.proof({LINES: lines}))


def hold(of: FileLog, known: dict[str, str]) -> object:
    return of.hold_against(known, lambda _: True)


def test_more_files_behind_those_that_were_read_are_the_same_history(folder: Path) -> None:
    known = proof(folder, 6)
    (folder / "0004.jsonl").write_text(line("more"))

    assert hold(log(folder), known) == {LINES: 6}


def test_files_that_were_not_read_may_still_change(folder: Path) -> None:
    known = proof(folder, 3)
    assert known["last"] == "0002.jsonl"
    (folder / "0003.jsonl").write_text(line("other"))

    assert hold(log(folder), known) == {LINES: 3}


def changed(path: Path) -> None:
    path.write_text(path.read_text().replace("0002", "9992"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: (f / "0000.jsonl").write_text(line("below")), "one came below those that were read"),
        (lambda f: (f / "0001b.jsonl").write_text(""), "one came below those that were read"),
        (lambda f: (f / "0001.jsonl").unlink(), "one was taken away"),
        (lambda f: (f / "0003.jsonl").unlink(), "one was taken away"),
        (lambda f: changed(f / "0002.jsonl"), "holds something else now"),
        (lambda f: (f / "0002.jsonl").write_text(line("0002.jsonl")), "holds something else now"),
        (lambda f: (f / "0003.jsonl").rename(f / "0002b.jsonl"), "holds something else now"),
    ],
    ids=["below", "between, and empty", "first gone", "last gone", "changed", "cut off", "renamed"],
)
def test_another_history_is_refused_by_the_next_run_and_by_one_that_goes_on(
    folder: Path, change: Callable[[Path], object], says: str
) -> None:
    known = proof(folder, 6)
    running = log(folder)
    running.extents()
    change(folder)

    with pytest.raises(HistoryError, match=says):
        hold(log(folder), known)
    with pytest.raises(OperatorError, match=r"came below those|not there any more|something else now"):
        list(running.read(LINES, 0, running.extents()[LINES].end))


def test_a_file_that_was_read_half_is_told_before_the_next_one_is_read(folder: Path) -> None:
    """Its first half may end behind a line."""
    running = log(folder)
    running.extents()
    with (folder / NAMES[-1]).open("a") as file:
        file.write(line("more"))
    (folder / "0004.jsonl").write_text(line("behind"))

    with pytest.raises(HistoryError, match=rf"file {NAMES[-1]} was read, and holds something else now"):
        running.extents()


def test_a_task_that_reads_a_file_anew_notices_that_it_has_changed(folder: Path) -> None:
    of = log(folder)
    of.extents()
    there = pickle.loads(pickle.dumps(of))
    assert [record.offset for record in there.read(LINES, 1, 5)] == [1, 2, 3, 4]
    changed(folder / "0002.jsonl")

    with pytest.raises(HistoryError, match=r"file 0002\.jsonl was read, and holds something else now"):
        list(there.read(LINES, 1, 5))


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["0001.jsonl", "0003.jsonl"], 2),
        ([f"{n:020}.jsonl" for n in (1, 2, 4)], 3),
        (["events-07.jsonl", "events-08.jsonl", "events-09.jsonl", "events-12.jsonl"], 10),
    ],
)
def test_a_numbered_file_that_is_missing_in_the_middle_is_told(tmp_path: Path, names: list[str], missing: int) -> None:
    for name in names:
        (tmp_path / name).write_text(line(name))

    with pytest.raises(OperatorError, match=f"number {missing} is missing"):
        log(tmp_path).extents()


@pytest.mark.parametrize(
    "names",
    [
        ["20260101.jsonl", "20260103.jsonl"],
        ["2026-01-01.jsonl", "2026-01-09.jsonl"],
        ["0930.jsonl", "1000.jsonl"],
        ["a.jsonl", "b.jsonl", "b2.jsonl"],
    ],
)
def test_names_that_are_no_series_may_leave_numbers_out(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text(line(name))

    assert log(tmp_path).extents()[LINES].end == len(names)


@pytest.mark.parametrize(
    ("names", "first", "then"),
    [
        (("part-8.jsonl", "part-9.jsonl", "part-10.jsonl"), "part-10.jsonl", "part-8.jsonl"),
        (("2026-9-30.jsonl", "2026-10-1.jsonl"), "2026-10-1.jsonl", "2026-9-30.jsonl"),
        (("shop.9.jsonl", "shop.10.jsonl", "other.3.jsonl"), "shop.10.jsonl", "shop.9.jsonl"),
    ],
)
def test_names_whose_order_is_not_that_of_their_numbers_are_refused(
    tmp_path: Path, names: tuple[str, ...], first: str, then: str
) -> None:
    """Read in the order of the names, the tenth file's transactions would come before the second's, and stay so."""
    for name in names:
        (tmp_path / name).write_text(line(name))

    with pytest.raises(OperatorError, match=f"file {first} would be read before file {then}") as refused:
        log(tmp_path).extents()

    assert "0009 and 0010" in refused.value.do


def test_names_that_are_told_apart_otherwise_need_no_zeros(tmp_path: Path) -> None:
    for name in ("a-10.jsonl", "b-9.jsonl", "2026-01-05T10.jsonl", "2026-01-05T11.jsonl", "3f2b.jsonl"):
        (tmp_path / name).write_text(line(name))

    assert log(tmp_path).extents()[LINES].end == 5


def test_files_of_penstock_s_own_without_the_first_ones_are_refused(tmp_path: Path) -> None:
    for number in (3, 4):
        (tmp_path / f"{number:020}.jsonl").write_text(line("a"))

    with pytest.raises(OperatorError, match=r"the first file is 0{19}3\.jsonl: those before it.* are missing"):
        log(tmp_path).extents()

    for number in (1, 2):
        (tmp_path / f"{number:020}.jsonl").write_text(line("a"))
    assert log(tmp_path).extents()[LINES].end == 4
