"""Events of another history: what attackers wrote is refused whole, or applied as it was meant, never lost."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.apply.progress import Progress
from penstock.errors import MalformedInputError, OperatorError
from penstock.history import HistoryError
from penstock.pipeline.pipeline import Pipeline
from tests.formats.debezium.events import block, envelope
from tests.kafka.events import Line, begin, end, line
from tests.lab import Lab
from tests.stories.test_event_types import PIPELINE, REPORTED

TABLE = "CREATE TABLE public.t (id int PRIMARY KEY, v text)"


class Folder:
    """Files of events, written one after the other, and a pipeline that applies them."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.files = 0
        (folder / "events").mkdir()
        given = json.dumps({"prefix": "shop", "settle_s": 0.1})
        (folder / "copy.yaml").write_text(PIPELINE.format(name=lab.name, url=lab.target_url, debezium=given))

    def next_file(self) -> Path:
        self.files += 1
        return self.folder / "events" / f"{self.files:04}.jsonl"

    def reported(self, name: str) -> None:
        shutil.copy(REPORTED / f"{name}.events.jsonl", self.next_file())

    def write(self, *lines: Line) -> None:
        self.next_file().write_text("".join(json.dumps(one) + "\n" for one in lines))

    def opened(self) -> Pipeline:
        pipeline = penstock.open(self.folder / "copy.yaml")
        assert isinstance(pipeline, Pipeline)
        return pipeline

    def run(self) -> Progress:
        pipeline = self.opened()
        pipeline.setup()
        return pipeline.run(threading.Event(), until_caught_up=True)

    def rows(self) -> list[tuple[Any, ...]]:
        return self.lab.target.execute("SELECT id, v FROM public.t ORDER BY 1, 2").fetchall()


@pytest.fixture
def folder(lab: Lab, tmp_path: Path, spark: object) -> Folder:
    return Folder(lab, tmp_path)


def event(op: str, id_: int, v: str, xid: int, order: int, **source: Any) -> Line:
    source = {"name": "shop", "db": "shop", "txId": xid, "lsn": xid * 100 + order, **source}
    source["sequence"] = json.dumps([str(xid * 100), str(source["lsn"])])
    given: dict[str, Any] = {} if op == "r" else {"transaction": block(f"{xid}:{source['lsn']}", order)}
    value = envelope(op, source=source, **{"before" if op == "d" else "after": {"id": id_, "v": v}}, **given)
    return line("shop.public.t", {"id": id_}, value)


def row(id_: int, v: str, mark: str, lsn: int = 10) -> Line:
    return event("r", id_, v, 0, 0, snapshot=mark, lsn=lsn, txId=None)


def commit(xid: int, *events: Line) -> list[Line]:
    return [begin(xid, prefix="shop"), *events, end(xid, prefix="shop", t=len(events))]


def test_a_transaction_whose_id_was_used_before_is_refused(folder: Folder) -> None:
    folder.reported("attack-txid-again.1")
    folder.run()
    before = folder.rows()
    folder.reported("attack-txid-again.2")

    with pytest.raises(HistoryError, match="transaction 700 has the name of an earlier one") as refused:
        folder.run()

    assert "the source was reset, restored or failed over" in str(refused.value)
    assert "`penstock resync --all` prepares a new first copy" in refused.value.do
    assert folder.rows() == before == [(1, "c"), (2, "b"), (3, "x")]


def test_an_end_that_contradicts_itself_applies_nothing(folder: Folder) -> None:
    folder.lab.target.execute(TABLE)
    folder.reported("attack-end-without-collections.1")

    with pytest.raises(MalformedInputError, match="ends a transaction of 2 events, and counts 0 by table"):
        folder.run()

    # Not even the first of its events.
    assert (1, "c") not in folder.rows()


@pytest.mark.parametrize("key", ["", "PRIMARY KEY"])
def test_a_first_snapshot_that_was_begun_again_leaves_nothing_of_the_first_attempt(folder: Folder, key: str) -> None:
    folder.lab.target.execute(f"CREATE TABLE public.t (id int {key}, v text)")
    folder.reported("attack-snapshot-begun-again")

    folder.run()

    assert folder.rows() == [(1, "new"), (3, "z"), (9, "c")]


def test_a_file_that_comes_below_those_that_were_read_is_refused(folder: Folder) -> None:
    folder.lab.target.execute(TABLE)
    folder.files = 4
    folder.write(row(1, "a", "last"), *commit(7, event("c", 2, "b", 7, 1)))
    folder.run()
    folder.files = 3
    folder.write(*commit(8, event("c", 3, "c", 8, 1)))

    with pytest.raises(HistoryError, match="one came below those that were read"):
        folder.run()

    (folder.folder / "events" / "0004.jsonl").rename(folder.folder / "events" / "0006.jsonl")
    folder.run()
    assert folder.rows() == [(1, "a"), (2, "b"), (3, "c")]


def test_events_of_a_second_server_or_database_are_refused_by_a_later_run(folder: Folder) -> None:
    folder.lab.target.execute(TABLE)
    folder.write(row(1, "a", "last"), *commit(7, event("c", 2, "b", 7, 1)))
    folder.run()
    folder.write(*commit(8, event("c", 3, "c", 8, 1, db="restored")))

    with pytest.raises(HistoryError, match="an event is of postgresql/shop/restored, and those before it are of"):
        folder.run()

    assert folder.rows() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("has_ends", [True, False], ids=["ends", "no ends"])
def test_rows_of_a_later_snapshot_are_applied_without_a_transaction_behind_them(folder: Folder, has_ends: bool) -> None:
    folder.lab.target.execute(TABLE)

    def written(xid: int, *events: Line) -> list[Line]:
        if has_ends:
            return commit(xid, *events)
        for one in events:
            one["value"]["transaction"] = None
        return list(events)

    folder.write(row(1, "a", "last"), *written(7, event("c", 2, "b", 7, 1)))
    folder.run()
    folder.lab.target.execute("DELETE FROM public.t WHERE id = 1")
    folder.write(row(1, "a", "incremental", 800), row(5, "e", "incremental", 800))
    pipeline = folder.opened()
    assert pipeline.status().backlog_changes == 2

    assert folder.run().changes == 2
    assert folder.rows() == [(1, "a"), (2, "b"), (5, "e")]
    # They are applied, and stay so: the next run has nothing to do.
    assert pipeline.status().backlog_changes == 0
    assert folder.run().changes == 0

    folder.write(*written(9, event("u", 5, "later", 9, 1)), row(6, "f", "incremental", 1000))
    assert folder.run().changes == 2
    assert folder.rows() == [(1, "a"), (2, "b"), (5, "later"), (6, "f")]


@pytest.mark.parametrize("changes", [[], commit(7, event("c", 9, "n", 7, 1))], ids=["alone", "with changes"])
@pytest.mark.parametrize("mark", ["first", "true"])
def test_rows_of_the_first_snapshot_that_come_when_it_is_copied_are_refused(
    folder: Folder, mark: str, changes: list[Line]
) -> None:
    """The copy lacks them, and no position lies between it and them."""
    folder.lab.target.execute(TABLE)
    folder.write(row(1, "a", mark), row(2, "b", "last" if mark == "first" else "true"))
    folder.run()
    folder.write(row(3, "c", "true"), row(4, "d", "last"), *changes)

    with pytest.raises(OperatorError, match="came after it was taken to be over: the copy lacks them") as refused:
        folder.run()

    assert "`penstock resync --all`" in refused.value.do
    assert folder.rows() == [(1, "a"), (2, "b")]
    folder.opened().resync()
    folder.run()
    assert folder.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), *([(9, "n")] if changes else [])]


def unnumbered(op: str, id_: int, v: str, xid: int, lsn: int, **source: Any) -> Line:
    """An event of a connector that writes no transaction metadata."""
    made = event(op, id_, v, xid, 1, lsn=lsn, **source)
    made["value"]["transaction"] = None
    return made


def test_a_change_that_says_nothing_of_its_transaction_is_refused_before_the_first_copy_too(folder: Folder) -> None:
    folder.lab.target.execute(TABLE)
    folder.write(row(1, "a", "last"), unnumbered("c", 2, "b", 7, 701, txId=None))

    with pytest.raises(MalformedInputError, match=r"a change says nothing of its transaction .*0001\.jsonl, line 2"):
        folder.run()


@pytest.mark.parametrize("other", ["b", "c"], ids=["equal", "different"])
def test_rows_without_key_or_number_at_one_place_are_not_taken_for_one_row_told_twice(
    folder: Folder, other: str
) -> None:
    """PostgreSQL gives all rows of one COPY one place."""
    folder.lab.target.execute("CREATE TABLE public.t (id int, v text)")
    copied, first, second = row(1, "a", "last"), *(unnumbered("c", 2, v, 7, 701) for v in ("b", other))
    for one in (copied, first, second):
        one["key"] = None
    folder.write(copied, first, second)

    with pytest.raises(MalformedInputError, match=r"two changes of table public\.t, which has no key, have one place"):
        folder.run()


def test_changes_whose_end_does_not_come_are_told_and_counted_by_a_run_that_catches_up(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the connector's transaction metadata was switched off."""
    folder.lab.target.execute(TABLE)
    folder.write(row(1, "a", "last"), *commit(7, event("c", 2, "b", 7, 1)))
    folder.run()
    folder.write(unnumbered("c", 3, "c", 8, 801), unnumbered("c", 4, "d", 9, 901), unnumbered("u", 4, "e", 9, 902))

    assert folder.run().changes == 0

    assert "2 transactions with 3 changes wait for an END, the first is 8" in caplog.text
    assert folder.opened().status().backlog_changes == 3


def test_a_snapshot_whose_first_files_are_gone_is_told_of(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    folder.lab.target.execute(TABLE)
    folder.files = 5
    folder.write(row(3, "c", "true"), row(4, "d", "last"), *commit(7, event("c", 5, "c", 7, 1)))

    folder.run()

    assert "no row of the connector's first snapshot is marked as its first" in caplog.text


def test_a_truncate_of_several_tables_empties_each_of_them(folder: Folder) -> None:
    """All of it has one place in the source's log, and none of it a key."""
    folder.lab.target.execute(f"{TABLE}; CREATE TABLE public.u (id int PRIMARY KEY, v text)")

    def of_other(made: Line) -> Line:
        made["topic"] = "shop.public.u"
        made["value"]["source"]["table"] = "u"
        return made

    emptied = unnumbered("c", 1, "a", 7, 701), of_other(unnumbered("c", 1, "a", 7, 701))
    for one in emptied:
        one["key"] = None
        one["value"] |= {"op": "t", "after": None}
    folder.write(row(1, "a", "first"), of_other(row(1, "a", "last")), *emptied)

    assert folder.run().changes == 2

    assert folder.rows() == folder.lab.target.execute("SELECT * FROM public.u").fetchall() == []
