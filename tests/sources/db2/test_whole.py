"""Whether the records of a transaction are all there: what was open where the log begins, and what is missing."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock.change import Op
from penstock.errors import MalformedInputError
from penstock.history import Consumer, History, HistoryError
from penstock.position import START, Limit
from penstock.sources.db2_log.buffers import Buffers
from penstock.sources.db2_log.source import Db2Log
from penstock.sources.recorded import RecordedConnector
from penstock.storage import LocalStorage
from tests.sources.db2.encoder import Log, Varying, image, inline
from tests.sources.db2.test_round_trip import TABLE


def plain(number: int) -> bytes:
    return image([struct.pack("<i", number), Varying(b"row"), inline(b"short")])


def folder(root: Path, log: Log, *buffers: list[bytes]) -> Db2Log:
    """A log of these buffers."""
    framing = "raw" if log.is_raw else "filter"
    (root / "catalog.json").write_text(json.dumps({"id": "SAMPLE", "framing": framing}) + json.dumps(TABLE))
    for number, records in enumerate(buffers, 1):
        (root / f"{number:09}.db2log").write_bytes(b"".join(records))
    return Db2Log(Buffers(LocalStorage(root)))


def told(log: Db2Log) -> list[tuple[str, int, str, str]]:
    """Of each change: its transaction, which one of how many it is, its operation, and why it is a gap."""
    found, after = [], START
    while (part := log.next_slice(after)) is not None:
        rows = [row for batch in log.read(part) for row in batch.to_pylist()]
        assert len(rows) == part.total_changes
        for change in rows:
            reason = json.loads(change["before"])["reason"] if change["op"] == Op.GAP else ""
            found.append((change["txn_id"][-1], change["change_seq"], change["op"], reason))
        after = part.end
    return found


def three(*, is_raw: bool) -> Log:
    """Transactions 1, 2 and 3, of which each but the last has two rows; 2 lies around 1."""
    log = Log(is_raw=is_raw, is_chained=True)
    log.insert(2, 1, plain(1))
    log.insert(1, 2, plain(2))
    log.insert(1, 3, plain(3))
    log.commit(1)
    log.insert(2, 4, plain(4))
    log.commit(2)
    log.insert(3, 5, plain(5))
    log.commit(3)
    return log


@pytest.mark.parametrize("is_raw", [True, False], ids=["raw", "filtered"])
def test_transactions_whose_records_are_all_there_are_told(tmp_path: Path, is_raw: bool) -> None:
    log = three(is_raw=is_raw)

    found = told(folder(tmp_path, log, log.records[:3], log.records[3:]))

    assert [(txn, seq) for txn, seq, *_ in found] == [("1", 0), ("1", 1), ("2", 0), ("2", 1), ("3", 0)]
    assert {(op, reason) for _, _, op, reason in found} == {("insert", "")}


@pytest.mark.parametrize("is_raw", [True, False], ids=["raw", "filtered"])
@pytest.mark.parametrize("cut", [1, 4], ids=["in one file", "over two files"])
def test_what_was_open_where_the_log_begins_is_named_and_put_aside(tmp_path: Path, is_raw: bool, cut: int) -> None:
    log = three(is_raw=is_raw)

    found = told(folder(tmp_path, log, log.records[1 : 1 + cut], log.records[1 + cut :]))

    others = [(txn, op) for txn, _, op, _ in found if txn != "2"]
    assert others == [("1", "insert"), ("1", "insert"), ("3", "insert")]
    ((_, seq, op, reason),) = [one for one in found if one[0] == "2"]
    assert (seq, op) == (0, "gap")
    assert reason.startswith("transaction 000000000002 was open already where the log begins (")
    assert "offset" in reason
    assert f"{TABLE['schema']}.{TABLE['table']}" in reason
    # A process that knows the index tells the same.
    assert told(Db2Log(Buffers(LocalStorage(tmp_path)))) == found


@pytest.mark.parametrize("lost", [1, 2, 4, 6], ids=["first", "middle", "of an open one", "between files"])
def test_a_record_that_is_missing_from_a_raw_log_stops_the_run_and_is_named(tmp_path: Path, lost: int) -> None:
    log = three(is_raw=True)
    records = [record for n, record in enumerate(log.records) if n != lost]

    with pytest.raises(MalformedInputError, match=r"at log sequence offset \d+, is not in the log that was recorded"):
        told(folder(tmp_path, log, records[:3], records[3:]))


def test_a_filtered_log_may_leave_out_records_of_a_transaction(tmp_path: Path) -> None:
    log = three(is_raw=False)
    records = [record for n, record in enumerate(log.records) if n != 2]

    assert [(txn, op) for txn, _, op, _ in told(folder(tmp_path, log, records))] == [
        ("1", "insert"),
        ("2", "insert"),
        ("2", "insert"),
        ("3", "insert"),
    ]


def test_a_process_that_goes_on_in_the_middle_of_a_raw_log_misses_nothing(tmp_path: Path) -> None:
    log = three(is_raw=True)
    source = folder(tmp_path, log, log.records[:4])
    first = source.next_slice(START)
    assert first is not None
    (tmp_path / "000000002.db2log").write_bytes(b"".join(log.records[4:]))

    later = folder(tmp_path, log, log.records[:4], log.records[4:])

    assert [(txn, op) for txn, _, op, _ in told(later)][2:] == [("2", "insert"), ("2", "insert"), ("3", "insert")]


@pytest.mark.parametrize("lost", [1, 2, 4, 6])
def test_a_record_that_is_missing_where_a_file_begins_is_noticed_by_a_later_process(tmp_path: Path, lost: int) -> None:
    log = three(is_raw=True)
    told(folder(tmp_path, log, log.records[:lost]))

    with pytest.raises(MalformedInputError, match=r"at log sequence offset \d+, is not in the log that was recorded"):
        told(folder(tmp_path, log, log.records[:lost], log.records[lost + 1 :]))


def not_for_readers(log: Log, tid: int) -> None:
    log.add(tid, 0x4E, log.dms(200), flags=0)


@pytest.mark.parametrize("cut", range(1, 6))
def test_records_that_are_not_for_readers_are_remembered_by_a_later_process(tmp_path: Path, cut: int) -> None:
    log = Log(is_raw=True, is_chained=True)
    not_for_readers(log, 9)
    not_for_readers(log, 1)
    log.insert(2, 2, plain(2))
    log.insert(1, 1, plain(1))
    log.commit(2)
    log.commit(1)
    told(folder(tmp_path, log, log.records[:cut]))

    found = told(folder(tmp_path, log, log.records[:cut], log.records[cut:]))

    assert [(txn, op) for txn, _, op, _ in found] == [("2", "insert"), ("1", "insert")]
    not_for_readers(log, 9)
    not_for_readers(log, 3)
    log.insert(3, 3, plain(3))
    assert told(folder(tmp_path, log, log.records[:cut], log.records[cut:6], log.records[6:7])) == found
    with pytest.raises(MalformedInputError, match="is not in the log that was recorded"):
        told(folder(tmp_path, log, log.records[:cut], log.records[cut:6], log.records[6:7], log.records[8:]))


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("has_row", [True, False], ids=["with a row", "without one"])
def test_what_was_open_where_the_log_begins_is_known_by_any_record_of_it(
    tmp_path: Path, cut: int, has_row: bool
) -> None:
    log = Log(is_raw=True, is_chained=True)
    log.insert(2, 1, plain(1))
    begin = len(log.records)
    not_for_readers(log, 2)
    log.insert(1, 2, plain(2))
    if has_row:
        log.insert(2, 3, plain(3))
    log.commit(2)
    log.commit(1)
    records = log.records[begin:]
    told(folder(tmp_path, log, records[:cut]))

    found = told(folder(tmp_path, log, records[:cut], records[cut:]))

    assert [(txn, op) for txn, _, op, _ in found] == [("2", "gap"), ("1", "insert")]
    assert found[0][3].startswith("transaction 000000000002 was open already where the log begins (")


@pytest.mark.parametrize("is_raw", [True, False], ids=["raw", "filtered"])
@pytest.mark.parametrize("is_later", [True, False], ids=["in a later process", "in the same one"])
def test_a_log_begins_with_the_first_file_that_holds_something(tmp_path: Path, is_raw: bool, is_later: bool) -> None:
    log = three(is_raw=is_raw)
    source = folder(tmp_path, log, [])
    assert told(source) == []
    (tmp_path / "000000002.db2log").write_bytes(b"".join(log.records[1:]))

    found = told(folder(tmp_path, log, [], log.records[1:]) if is_later else source)

    assert [(txn, op) for txn, _, op, _ in found] == [
        ("1", "insert"),
        ("1", "insert"),
        ("2", "gap"),
        ("3", "insert"),
    ]


def test_a_transaction_that_only_commits_where_a_filtered_log_begins_is_put_aside(tmp_path: Path) -> None:
    log = three(is_raw=False)

    found = told(folder(tmp_path, log, log.records[3:]))

    assert [(txn, op) for txn, _, op, _ in found] == [("1", "gap"), ("2", "gap"), ("3", "insert")]
    assert "it changed no table of the catalogue since" in found[0][3]


def test_an_index_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    log = three(is_raw=True)
    told(folder(tmp_path, log, log.records[:4]))
    (path,) = (tmp_path / "index").rglob("*.npz")
    with np.load(path) as stored:
        earlier = {name: array for name, array in stored.items() if name not in ("floors", "chains", "of")}
    assert len(earlier) == 6
    np.savez(path, **earlier)

    found = told(folder(tmp_path, log, log.records[:4], log.records[4:]))

    assert [(txn, op) for txn, _, op, _ in found] == [
        ("1", "insert"),
        ("1", "insert"),
        ("2", "insert"),
        ("2", "insert"),
        ("3", "insert"),
    ]
    # What this version has added goes on from there.
    log.insert(4, 9, plain(9))
    log.commit(4)
    with pytest.raises(MalformedInputError, match="is not in the log that was recorded"):
        told(folder(tmp_path, log, log.records[:4], log.records[4:8], log.records[9:]))


@pytest.mark.parametrize("is_raw", [True, False], ids=["raw", "filtered"])
@pytest.mark.parametrize("ends", [Log.commit, Log.abort], ids=["commit", "rollback"])
@pytest.mark.parametrize("cut", [2, 3, 4])
def test_a_lost_end_of_a_transaction_is_noticed_when_its_identifier_is_given_again(
    tmp_path: Path, is_raw: bool, ends: Callable[[Log, int], None], cut: int
) -> None:
    log = Log(is_raw=is_raw, is_chained=True)
    log.insert(1, 1, plain(1))
    log.insert(1, 2, plain(2))
    ends(log, 1)
    del log.last[1]
    log.insert(1, 3, plain(3))
    log.commit(1)
    records = [*log.records[:2], *log.records[3:]]
    told(folder(tmp_path, log, records[: cut - 1]))

    with pytest.raises(MalformedInputError, match="an earlier transaction with this identifier has not ended"):
        told(folder(tmp_path, log, records[: cut - 1], records[cut - 1 :]))
    for path in (tmp_path / "index").rglob("*.npz"):
        path.unlink()
    with pytest.raises(MalformedInputError, match="an earlier transaction with this identifier has not ended"):
        told(folder(tmp_path, log, records, []))


def test_a_table_that_is_made_with_the_identifiers_of_another_is_named_before_its_rows_are_read(tmp_path: Path) -> None:
    """The other one was dropped: identifiers are given again."""
    log = Log(is_chained=True)
    log.insert(1, 1, plain(1))
    log.commit(1)
    log.add(2, 0x4E, log.dms(128))
    made_at = [7, log.lsn]
    log.insert(2, 1, plain(2))
    log.commit(2)

    with pytest.raises(MalformedInputError, match=r"a table was made here with the identifiers of \w+\.\w+") as refused:
        told(folder(tmp_path, log, log.records))

    assert f'"from": {made_at}' in refused.value.do
    source = folder(tmp_path, log, log.records)
    with (tmp_path / "catalog.json").open("a") as catalog:
        json.dump(TABLE | {"table": "OTHER", "from": made_at}, catalog)
    part = source.next_slice(START)
    assert part is not None
    names = [row["table_name"] for batch in source.read(part) for row in batch.to_pylist()]
    assert names == [TABLE["table"], "OTHER"]


@pytest.mark.parametrize("is_raw", [True, False], ids=["raw", "filtered"])
def test_an_index_of_other_files_is_not_gone_by(tmp_path: Path, is_raw: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A folder was emptied and filled anew, with its index left; or a file grew, which it may not."""
    log = three(is_raw=is_raw)
    told(folder(tmp_path, log, log.records[:2], log.records[2:4]))

    found = told(folder(tmp_path, log, log.records[:2], log.records[2:]))

    assert [(txn, op) for txn, _, op, _ in found] == [(txn, "insert") for txn in "11223"]
    assert "the index is not of file" in caplog.text
    assert "000000002.db2log, which each process looks at anew" in caplog.text
    assert "000000001.db2log" not in caplog.text


def test_a_log_that_holds_something_else_than_was_read_is_refused_by_a_later_run(tmp_path: Path) -> None:
    """As that of a database which was restored, and went on otherwise."""
    log = three(is_raw=True)
    source = RecordedConnector(folder(tmp_path, log, log.records)).open_source()
    joined = source.join(History(Consumer("c", "bank"), None, START, None, None, is_new=True))
    part = source.next_slice(joined.position, Limit())
    assert part is not None
    went_on = History(Consumer("c", "bank"), joined.origin, part.end, part.anchor, part.anchor, is_new=False)
    assert RecordedConnector(folder(tmp_path, log, log.records)).open_source().join(went_on).position == part.end
    other = Log(is_raw=True, is_chained=True)
    for tid in (2, 1, 3):
        other.insert(tid, tid, plain(tid + 1))
        other.insert(tid, tid + 3, plain(9))
        other.commit(tid)

    with pytest.raises(HistoryError, match=r"what lies before offset \d+ of file 1 was read, and holds something else"):
        RecordedConnector(folder(tmp_path, other, other.records)).open_source().join(went_on)
