"""Large LOBs, and LOBs that are appended to: they stay in the files of the log until the target has its row."""

from __future__ import annotations

import errno
import json
import random
import resource
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import change as c
from penstock.apply.apply_errors import VALUE_MISSING, VALUE_TOO_LONG
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.task import TaskContext, apply_lane, in_commit_order
from penstock.change import TableName
from penstock.dialects.postgres.target.access import PostgresTarget
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.dialects.postgres.target.external_values import MOST_BYTES
from penstock.errors import MalformedInputError, OperatorError
from penstock.external_values import ExternalValue
from penstock.position import Scn
from penstock.sources.db2_log.buffers import Buffers
from penstock.sources.db2_log.changes import LARGE_LOB_BYTES
from penstock.sources.db2_log.lobs import LogValues
from penstock.sources.db2_log.source import Db2Log
from penstock.storage import LocalStorage, ObjectStorage, Storage
from penstock.values import decode_image
from tests.hand_made import Target
from tests.sources.db2.brought import brought
from tests.sources.db2.encoder import OUT, Log, Varying, image, inline
from tests.sources.db2.test_round_trip import LONGEST_INLINE, STEPS, TABLE, History, is_out

DOC = {
    "schema": "public",
    "table": "doc",
    "tablespace_id": 3,
    "table_id": 22,
    "columns": [
        {"name": "id", "type": "INTEGER", "key_seq": 1},
        {"name": "text", "type": "CLOB", "inline_length": 164},
        {"name": "data", "type": "BLOB", "inline_length": 164},
    ],
}
MADE = "CREATE TABLE doc (id int PRIMARY KEY, text text, data bytea)"
TEXT, DATA = 1, 2

LONG = "§ 12 – größer € " * 120_000
BYTES = random.Random(5).randbytes(3 * LARGE_LOB_BYTES + 17)


class Folder:
    """A folder of buffers, and a log that is written into it."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, Log()
        self.say()
        self._written = self._files = 0

    def say(self, **settings: Any) -> None:
        (self.root / "catalog.json").write_text(json.dumps({"id": "SAMPLE", **settings}) + json.dumps(DOC))

    def flush(self, most_records: int = 10_000) -> None:
        """Write what was added since, in files of so many records."""
        new = self.log.records[self._written :]
        self._written = len(self.log.records)
        for at in range(0, len(new), most_records):
            self._files += 1
            (self.root / f"{self._files:09}.db2log").write_bytes(b"".join(new[at : at + most_records]))

    def changes(self, storage: Storage | None = None) -> list[pa.RecordBatch]:
        """What is read of all that there is."""
        recording = Db2Log(Buffers(storage or LocalStorage(self.root)))
        found, after = [], Scn(0)
        while (part := recording.next_slice(after)) is not None:
            found += list(recording.read(part))
            after = part.end
        return found

    def images(self) -> list[Any]:
        return [decode_image(text) for batch in self.changes() for text in batch[c.AFTER].to_pylist()]


class Copy(Target):
    """A target that is brought values from a folder."""

    def __init__(self, url: str, folder: Folder, sql: str = MADE) -> None:
        super().__init__(url, sql)
        self.values = LogValues(LocalStorage(folder.root))

    def context(self, config: ServerConfig = ServerConfig()) -> TaskContext:
        return replace(super().context(config), target=PostgresTarget(self.url, "A1", values=self.values))

    @property
    def queue(self) -> PostgresErrorQueue:
        return PostgresErrorQueue(self.url, "A1", values=self.values)

    def follow(self, folder: Folder, config: ServerConfig = ServerConfig()) -> LaneResult:
        """Apply all that is in the folder and not applied yet."""
        return self.take(folder.changes(), config)

    def take(self, changes: list[pa.RecordBatch], config: ServerConfig = ServerConfig()) -> LaneResult:
        """Apply changes."""
        context = self.context(config)
        rows = in_commit_order(changes, context.catalog.instantiated)
        result = apply_lane(rows.to_batches(), self._claim(0, moves_watermark=True), context)
        if result.failure is not None:
            raise result.failure
        return result


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def copy(database: str, folder: Folder) -> Iterator[Copy]:
    made = Copy(database, folder)
    yield made
    made.close()


def row(number: int, text: Varying, data: Varying) -> bytes:
    return image([struct.pack("<i", number), text, data])


def insert_large(log: Log, tid: int, number: int) -> None:
    """Insert a row both of whose LOBs are large; their records are mixed with those of others."""
    log.start(tid)
    for at in range(0, len(LONG.encode()), 32_000):
        log.lob(tid, TEXT, LONG.encode()[at : at + 32_000])
        log.start(tid + 1)
        log.lob(tid + 1, TEXT, b"of another transaction")
        log.insert(tid + 1, 90_000 + at, row(number + 90_000 + at, OUT, Varying(None)))
    log.lob(tid, DATA, BYTES)
    log.insert(tid, number, row(number, OUT, OUT))


def test_a_large_lob_is_told_as_its_place_and_a_small_one_as_its_value(folder: Folder) -> None:
    log = folder.log
    log.start(1)
    log.lob(1, TEXT, b"x" * LARGE_LOB_BYTES)
    log.lob(1, DATA, b"y" * (LARGE_LOB_BYTES + 1))
    log.insert(1, 1, row(1, OUT, OUT))
    log.commit(1)
    folder.flush()

    (after,) = folder.images()

    assert after["text"] == "x" * LARGE_LOB_BYTES
    assert not isinstance(after["text"], ExternalValue)
    assert isinstance(after["data"], ExternalValue)
    assert (after["data"].size_bytes, after["data"].is_binary, after["data"].is_appended) == (
        LARGE_LOB_BYTES + 1,
        True,
        False,
    )
    assert b"".join(LogValues(LocalStorage(folder.root)).pieces(after["data"].place)) == b"y" * (LARGE_LOB_BYTES + 1)


@pytest.mark.parametrize("use_set_path", [True, False], ids=["set-path", "row-path"])
def test_large_lobs_reach_the_target_whole(folder: Folder, copy: Copy, use_set_path: bool) -> None:
    insert_large(folder.log, 1, 7)
    folder.log.commit(2)
    folder.log.insert(3, 8, row(8, inline(b"short"), Varying(None)))
    folder.log.commit(3)
    folder.log.commit(1)
    # The LOBs are in many files, and so are characters of the text.
    folder.flush(most_records=20)

    result = copy.follow(folder, ServerConfig(use_set_path=use_set_path))

    assert copy.rows("SELECT text, data FROM doc WHERE id = 7") == [(LONG, BYTES)]
    assert copy.one("SELECT text FROM doc WHERE id = 8") == "short"
    assert (
        copy.one("SELECT count(*) FROM doc WHERE text = 'of another transaction'") == len(LONG.encode()) // 32_000 + 1
    )
    # Only the row that needs it leaves the set path.
    assert result.row_changes == (1 if use_set_path else result.changes)


def test_an_update_sets_a_large_lob_and_leaves_the_other_one(folder: Folder, copy: Copy) -> None:
    log = folder.log
    insert_large(log, 1, 7)
    log.commit(1)
    log.abort(2)
    log.start(3)
    log.lob(3, DATA, BYTES[::-1], original=4)
    log.update(3, 7, row(7, OUT, OUT), row(7, OUT, OUT))
    log.commit(3)
    folder.flush()

    copy.follow(folder)

    assert copy.rows("SELECT id, text, data FROM doc") == [(7, LONG, BYTES[::-1])]


def test_what_is_appended_comes_behind_what_the_target_has(folder: Folder, copy: Copy) -> None:
    log = folder.log
    insert_large(log, 1, 7)
    log.abort(2)
    log.commit(1)
    # Small ones, of both kinds, and twice in a transaction; then a large one.
    for text, data in ((b" and more", b"\x00\xff"), (" größer".encode(), b"")):
        log.start(3)
        log.lob(3, TEXT, text, original=8)
        log.lob(3, DATA, data, original=8)
        log.update(3, 7, row(7, OUT, OUT), row(7, OUT, OUT))
    log.commit(3)
    log.start(4)
    log.lob(4, TEXT, LONG.encode(), original=8)
    log.update(4, 7, row(7, OUT, OUT), row(7, OUT, OUT))
    log.commit(4)
    # Its old value lies in the row.
    log.insert(5, 8, row(8, inline(b"old "), Varying(None)))
    log.start(5)
    log.lob(5, TEXT, LONG.encode(), original=8)
    log.update(5, 8, row(8, inline(b"old "), Varying(None)), row(8, OUT, Varying(None)))
    log.commit(5)
    folder.flush()

    copy.follow(folder)

    assert copy.rows("SELECT id, text, data FROM doc ORDER BY id") == [
        (7, LONG + " and more größer" + LONG, BYTES + b"\x00\xff"),
        (8, "old " + LONG, None),
    ]


def test_nothing_is_appended_where_the_target_has_no_value(folder: Folder, copy: Copy) -> None:
    copy.connection.execute("INSERT INTO doc VALUES (7, NULL, NULL)")
    log = folder.log
    log.start(1)
    log.lob(1, TEXT, b"more", original=8)
    log.update(1, 7, row(7, OUT, Varying(None)), row(7, OUT, Varying(None)))
    log.commit(1)
    folder.flush()

    copy.follow(folder)

    (error,) = copy.errors()
    assert error.error_number == VALUE_MISSING
    assert "column 'text' was appended to, and is null at the target" in error.error_message
    assert copy.one("SELECT text FROM doc") is None

    # It is applied as it was committed, once there is a value.
    copy.connection.execute("UPDATE doc SET text = 'some and '")
    copy.retry()
    assert copy.one("SELECT text FROM doc") == "some and more"


def test_a_large_lob_in_the_error_queue_is_brought_when_it_is_tried_again(folder: Folder, copy: Copy) -> None:
    copy.connection.execute("INSERT INTO doc VALUES (7, 'in the way', NULL)")
    insert_large(folder.log, 1, 7)
    folder.log.abort(2)
    folder.log.commit(1)
    folder.flush()

    copy.follow(folder)

    (error,) = copy.errors()
    kept = copy.one("SELECT after FROM penstock.error_change")
    assert len(json.dumps(kept)) < 1000
    copy.connection.execute("DELETE FROM doc")
    assert copy.retry() == [error.id]
    assert copy.rows("SELECT id, text, data FROM doc") == [(7, LONG, BYTES)]


def test_a_log_that_is_not_what_it_was_is_refused(folder: Folder, copy: Copy) -> None:
    insert_large(folder.log, 1, 7)
    folder.log.abort(2)
    folder.log.commit(1)
    folder.flush()
    values = LogValues(LocalStorage(folder.root))
    (after,) = folder.images()
    first, last, column, size = after["text"].place.split(":")

    nowhere = ("nowhere", f"{after['text'].place}:0")
    for place in (f"{first}:{int(last) - 1}:{column}:{size}", f"{first}:{last}:0:{size}", *nowhere):
        with pytest.raises(MalformedInputError, match=r"is not where it was|is of no column"):
            list(values.pieces(place))
    short = rf"{size} bytes of the LOB .* where there were 7.*000000001\.db2log, offset \d+"
    with pytest.raises(MalformedInputError, match=short):
        list(values.pieces(f"{first}:{last}:{column}:7"))
    # As an earlier version named it.
    assert b"".join(values.pieces(f"{first}:{last}:{column}")) == LONG.encode()

    folder.say(encoding="ascii")
    with pytest.raises(MalformedInputError, match=r"000000001\.db2log, offset \d+"):
        list(values.pieces(after["text"].place))


def not_for_readers(record: bytes, prefix_size: int) -> bytes:
    """A record without the flag that says that readers of the log may see it."""
    flagged = bytearray(record)
    struct.pack_into("<H", flagged, prefix_size + 6, 0)
    return bytes(flagged)


def insert_in_pieces(log: Log, *pieces: bytes) -> None:
    log.start(1)
    for data in pieces:
        log.lob(1, DATA, data, most=len(data))
    log.insert(1, 7, row(7, Varying(None), OUT))
    log.commit(1)


def test_records_that_are_not_for_readers_are_no_piece_of_a_lob(folder: Folder) -> None:
    insert_in_pieces(folder.log, BYTES, b"not for readers", BYTES)
    # Without a filter, what it tells of expansion does not stand before a record.
    folder.log.records[:] = [record[:48] + record[56:] for record in folder.log.records]
    folder.log.records[2] = not_for_readers(folder.log.records[2], 48)
    folder.say(framing="raw")
    folder.flush()

    (after,) = folder.images()

    assert b"".join(LogValues(LocalStorage(folder.root)).pieces(after["data"].place)) == BYTES + BYTES


def test_a_record_that_a_filter_should_have_left_out_is_refused_when_a_lob_is_brought(folder: Folder) -> None:
    insert_in_pieces(folder.log, BYTES, b"more", BYTES)
    folder.flush()
    (after,) = folder.images()
    records = folder.log.records
    altered = [*records[:2], not_for_readers(records[2], 56), *records[3:]]
    (folder.root / "000000001.db2log").write_bytes(b"".join(altered))

    with pytest.raises(MalformedInputError, match=r"not for readers of the log.*000000001\.db2log, offset \d+"):
        list(LogValues(LocalStorage(folder.root)).pieces(after["data"].place))


def test_files_of_an_object_store_are_read_as_those_of_a_disk(folder: Folder) -> None:
    insert_large(folder.log, 1, 7)
    folder.log.abort(2)
    folder.log.commit(1)
    folder.flush(most_records=30)
    store = ObjectStorage(pafs.LocalFileSystem(), str(folder.root), "store")

    (after,) = (decode_image(text) for batch in folder.changes(store) for text in batch[c.AFTER].to_pylist())

    assert "".join(piece.decode() for piece in LogValues(store).pieces(after["text"].place)) == LONG
    assert b"".join(LogValues(store).pieces(after["data"].place)) == BYTES


@pytest.fixture
def few_files() -> Iterator[None]:
    """This process may open a few files more, and not hundreds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 50, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
def test_a_transaction_may_span_more_small_files_than_may_be_open(folder: Folder) -> None:
    log = folder.log
    log.start(1)
    log.lob(1, TEXT, LONG.encode())
    log.insert(1, 7, row(7, OUT, Varying(None)))
    log.commit(1)
    folder.flush(most_records=1)

    (after,) = folder.images()

    assert after["text"].size_bytes == len(LONG.encode())


@pytest.mark.usefixtures("few_files")
def test_what_to_do_where_too_many_files_would_be_open_is_said(folder: Folder) -> None:
    log = folder.log
    log.start(1)
    log.lob(1, TEXT, b"x" * 100 * 70_000, most=70_000)
    folder.flush(most_records=1)

    with pytest.raises(OperatorError, match=r"too many open files .*\.db2log\)\. Allow more open files"):
        folder.changes()


def test_a_local_disk_without_room_for_them_is_named(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.log.lob(1, TEXT, b"x" * 100_000)
    folder.flush()

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)

    with pytest.raises(OperatorError, match=r"local disk: no space left.* \(store/000000001\.db2log\)\. Set TMPDIR"):
        folder.changes(ObjectStorage(pafs.LocalFileSystem(), str(folder.root), "store"))


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=60), cuts=st.sets(st.integers(1, 80), max_size=5))
def test_what_is_brought_of_any_history_is_what_is_read_whole(order: str, steps: list[Any], cuts: set[int]) -> None:
    history = History(order)
    for one in steps:
        history.step(*one)
    buffers = history.log.buffers(cut for cut in cuts if cut < len(history.log.records))
    setting = {"id": "SAMPLE", "byte_order": "little" if order == "<" else "big"}

    found = list(brought(buffers, json.dumps(setting) + json.dumps(TABLE), most=LONGEST_INLINE))

    told = [c["after"]["TEXT"] for _, _, changes in history.expected for c in changes if c["op"] == "insert"]
    assert [value for value, _ in found] == [text for text in told if is_out(text)]
    assert [value for value, _ in found] == [value for _, value in found]


def write_long(folder: Folder, size: int) -> None:
    """Write a log with one BLOB of zeroes into a file that has holes in their place."""
    log = folder.log
    log.start(1)
    log.lob_record(1, 64, DATA, 1, 32_768, 0, bytes(32_768))
    start, piece = log.records
    with (folder.root / "000000001.db2log").open("wb") as file:
        file.write(start)
        for _ in range(size // 32_768):
            head = bytearray(piece[: 56 + 40 + 32])
            log.lsn += 1
            log.lso += len(piece)
            struct.pack_into("<Q", head, 16, log.lsn)
            struct.pack_into("<Q", head, 40, log.lso)
            struct.pack_into("<Q", head, 64, log.lsn)
            file.write(head)
            file.seek(32_768, 1)
        log.records.clear()
        log.insert(1, 7, row(7, Varying(None), OUT))
        log.commit(1)
        file.write(b"".join(log.records))


def test_a_value_is_never_whole_in_memory_on_its_way_to_the_target(folder: Folder, copy: Copy) -> None:
    size = 96 * 1024**2
    write_long(folder, size)
    changes = folder.changes()
    tracemalloc.start()

    copy.take(changes)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert copy.one("SELECT length(data) FROM doc") == size
    assert peak < size // 4


def test_memory_is_flat_while_two_gigabytes_pass(folder: Folder, copy: Copy) -> None:
    size = 2 * 1024**3
    write_long(folder, size)
    tracemalloc.start()

    changes = folder.changes()
    copy.take(changes)
    (after,) = (decode_image(text) for batch in changes for text in batch[c.AFTER].to_pylist())
    assert isinstance(after["data"], ExternalValue)
    assert after["data"].place is not None
    read = sum(len(piece) for piece in copy.values.pieces(after["data"].place))

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read == size
    assert peak < 64 * 1024**2
    # PostgreSQL takes no such value; that is said of it, and no part of it is written.
    (error,) = copy.errors()
    assert (error.error_number, error.table) == (VALUE_TOO_LONG, TableName("public", "doc"))
    assert f"column 'data' has {size} bytes" in error.error_message
    assert f"more than {MOST_BYTES} are not written" in error.error_message
    assert copy.one("SELECT count(*) FROM doc") == 0
