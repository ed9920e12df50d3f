"""Writing an archive: crashes anywhere, runs that were replaced, and readers that look at any moment."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from penstock import change as c
from penstock.archive import Archive
from penstock.change import TableName
from penstock.errors import FencedError, MalformedInputError, OperatorError
from penstock.formats.archive_log import CopiedPart
from penstock.formats.change_file import Encoding
from penstock.history import CaptureOrigin
from penstock.position import Anchor, Scn
from penstock.sinks.archive.files import ArchiveWriter, FileWriter, make_archive
from penstock.storage import LocalStorage, ObjectStorage, Storage
from tests.archives import COPIED, EVERYTHING, ITEM, STORY, changes_of, publish, read, row, stream, transaction


class Died(BaseException):
    """The process is gone; nothing that it does afterwards happens."""


class Mortal:
    """Counts operations on files, and dies before one of them, which is behind the one before."""

    def __init__(self, dies_at: int = -1) -> None:
        self.done = 0
        self._dies_at = dies_at

    def __call__(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if 0 <= self._dies_at <= self.done:
                raise Died
            self.done += 1
            return do(*args, **kwargs)

        return called


class MortalStorage:
    """Storage as a process sees it that dies between two requests: an object is there whole, or not at all."""

    def __init__(self, storage: Storage, mortal: Mortal) -> None:
        self.label = storage.label
        self.create, self.read = mortal(storage.create), mortal(storage.read)
        self.names, self.size = mortal(storage.names), mortal(storage.size)
        self.check_writable = mortal(storage.check_writable)

    def create_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        for name, content in files:
            self.create(name, content)


@contextmanager
def on_disk(folder: Path, mortal: Mortal) -> Iterator[Storage]:
    """A disk as a process sees it that dies between any two calls of the system."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", mortal(lambda _: None))
        for name in ("open", "fchmod", "link"):
            patch.setattr(os, name, mortal(getattr(os, name)))
        for name in ("mkdir", "chmod", "unlink"):
            patch.setattr(Path, name, mortal(getattr(Path, name)))
        yield LocalStorage(folder)


@contextmanager
def in_a_store(folder: Path, mortal: Mortal) -> Iterator[Storage]:
    yield MortalStorage(store(folder), mortal)


def store(folder: Path) -> ObjectStorage:
    return ObjectStorage(pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem()), "", "store://shop")


def run_until_death(place: Any, folder: Path, mortal: Mortal) -> bool:
    """Publish; returns whether the process lived."""
    with place(folder, mortal) as storage:
        try:
            publish(storage)
        except Died:
            return False
    return True


def seen(folder: Path) -> pa.Table | None:
    """What a reader sees who comes by now; None as long as there is no archive."""
    return read(LocalStorage(folder)) if (folder / "archive.json").exists() else None


def assert_whole(rows: pa.Table | None) -> None:
    """Whole transactions from the first on, nothing twice; a copy whole or not at all."""
    if rows is None:
        return
    found = changes_of(rows)
    assert found == EVERYTHING[: len(found)]
    assert len(found) == len(EVERYTHING) or EVERYTHING[len(found)][1] == 0
    copied = rows.filter(pa.compute.equal(rows[c.OP], "snapshot"))
    assert copied.equals(pa.Table.from_batches([COPIED])) if len(copied) else not found


@pytest.mark.parametrize("place", [on_disk, in_a_store], ids=["disk", "store"])
def test_a_run_that_dies_anywhere_loses_doubles_and_tears_nothing(place: Any, tmp_path: Path) -> None:
    counting = Mortal()
    (tmp_path / "whole").mkdir()
    assert run_until_death(place, tmp_path / "whole", counting)
    assert counting.done >= 20

    for number in range(counting.done):
        folder = tmp_path / f"died-{number}"
        folder.mkdir()
        assert not run_until_death(place, folder, Mortal(number))
        assert_whole(seen(folder))

        publish(LocalStorage(folder))
        after = seen(folder)
        assert_whole(after)
        assert after is not None
        assert changes_of(after) == EVERYTHING


def test_runs_that_die_one_after_the_other_get_on(tmp_path: Path) -> None:
    deaths = 0
    while not run_until_death(on_disk, tmp_path, Mortal(30 + 10 * deaths)):
        deaths += 1
        assert_whole(seen(tmp_path))
    assert deaths > 2
    found = seen(tmp_path)
    assert found is not None
    assert changes_of(found) == EVERYTHING


@pytest.mark.parametrize("encoding", Encoding)
def test_a_reader_sees_what_was_published(encoding: Encoding, tmp_path: Path) -> None:
    publish(LocalStorage(tmp_path), encoding)
    rows = read(LocalStorage(tmp_path))
    assert rows.equals(pa.Table.from_batches([COPIED, *STORY]))


def test_a_run_that_was_replaced_writes_no_more(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    header = make_archive(storage, "shop", Encoding.CHANGES)
    zombie, run = ArchiveWriter(storage), ArchiveWriter(storage)
    files = FileWriter(storage, header.encoding, zombie.acquire().epoch)
    written = files.write_changes([stream(transaction(1))])

    run.acquire()

    with pytest.raises(FencedError, match=r"another run publishes to this archive \(.*log/0+2\.json\)"):
        zombie.commit(Scn(1), written)
    run.commit(Scn(1), FileWriter(storage, header.encoding, run.last.epoch).write_changes([stream(transaction(1))]))
    with pytest.raises(FencedError):
        zombie.commit(Scn(1), written)
    assert changes_of(read(storage)) == [(1, 0)]


def test_of_two_runs_that_begin_at_once_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    make_archive(storage, "shop", Encoding.CHANGES)
    late, early = ArchiveWriter(storage), ArchiveWriter(storage)
    count = Archive.count_records

    def count_while_the_other_begins(archive: Archive) -> int:
        monkeypatch.setattr(Archive, "count_records", count)
        found = archive.count_records()
        early.acquire()
        return found

    monkeypatch.setattr(Archive, "count_records", count_while_the_other_begins)

    with pytest.raises(FencedError):
        late.acquire()
    early.commit(Scn(3))


def test_a_run_goes_on_where_the_last_one_stood(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    before = publish(storage)
    before.commit(before.last.end, origin=CaptureOrigin("set", "place"))

    after = ArchiveWriter(storage).acquire()

    assert (after.after, after.end) == (13, 13)
    assert after.epoch == before.last.epoch + 1
    assert after.anchor == Anchor(Scn(13), "m13")
    assert after.origin == CaptureOrigin("set", "place")


def test_an_archive_of_another_source_or_format_is_refused(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    first = make_archive(storage, "shop", Encoding.CHANGES)
    assert make_archive(storage, "shop", Encoding.CHANGES) == first
    with pytest.raises(OperatorError, match="the archive is of source 'shop', not 'stock'"):
        make_archive(storage, "stock", Encoding.CHANGES)
    with pytest.raises(OperatorError, match="of format 'changes', not 'parquet'"):
        make_archive(storage, "shop", Encoding.PARQUET)


def test_files_are_of_bounded_size_and_a_transaction_may_fill_several(tmp_path: Path) -> None:
    writer = FileWriter(LocalStorage(tmp_path), Encoding.CHANGES, 1, max_bytes=2_000)

    written = writer.write_changes([stream(transaction(1), transaction(2, 40), transaction(3))])

    assert len(written.files) > 3
    assert [(file.first, file.last) for file in (written.files[0], written.files[2], written.files[-1])] == [
        (1, 2),
        (2, 2),
        (2, 3),
    ]
    assert written.transactions.commit_scns.tolist() == [1, 2, 3]
    assert written.transactions.changes.tolist() == [1, 40, 1]
    assert sum(file.changes for file in written.files) == 42


def test_small_batches_share_a_file(tmp_path: Path) -> None:
    writer = FileWriter(LocalStorage(tmp_path), Encoding.CHANGES, 1)
    (file,) = writer.write_changes(stream(transaction(n)) for n in range(1, 100)).files
    assert (file.transactions, file.changes) == (99, 99)


def test_changes_out_of_order_are_not_written(tmp_path: Path) -> None:
    writer = FileWriter(LocalStorage(tmp_path), Encoding.CHANGES, 1)
    with pytest.raises(MalformedInputError, match="changes are not in commit order"):
        writer.write_changes([stream(transaction(2)), stream(transaction(1))])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("end", "positions"), [(4, [5]), (20, [13]), (20, [14, 16])], ids=["behind the end", "before", "not in order"]
)
def test_a_record_that_would_tear_the_archive_is_not_written(end: int, positions: list[int], tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    run = publish(storage)
    files = FileWriter(storage, Encoding.CHANGES, run.last.epoch)
    parts = [files.write_changes([stream(transaction(n))]) for n in reversed(positions)]
    written = parts[0] if len(parts) == 1 else parts[0].followed_by(parts[1])

    with pytest.raises(MalformedInputError, match="in another order"):
        run.commit(Scn(end), written)

    assert changes_of(read(storage)) == EVERYTHING


def test_files_that_another_machine_has_kept_to_itself_are_not_published(tmp_path: Path) -> None:
    here, there = LocalStorage(tmp_path / "here"), LocalStorage(tmp_path / "there")
    make_archive(here, "shop", Encoding.CHANGES)
    run = ArchiveWriter(here)
    epoch = run.acquire().epoch
    written = FileWriter(there, Encoding.CHANGES, epoch).write_changes([stream([row(5)])])

    with pytest.raises(OperatorError) as caught:
        run.commit(Scn(5), written)

    assert "is not to be seen by the run itself" in caught.value.what
    assert written.files[0].name in caught.value.where
    assert "share" in caught.value.do
    assert run.last.end == 0


def test_a_copy_that_was_not_finished_is_of_no_account(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    make_archive(storage, "shop", Encoding.CHANGES)
    run = ArchiveWriter(storage)
    files = FileWriter(storage, Encoding.CHANGES, run.acquire().epoch)
    for number, (copy, is_complete) in enumerate([("a", False), ("b", False), ("b", True)]):
        part = files.write_copy([stream([row(4, number, op="snapshot")])])
        run.commit(Scn(0), copies=[CopiedPart(ITEM, copy, Scn(4), tuple(part), is_complete)])
    run.commit(Scn(6))
    assert [r[c.CHANGE_SEQ] for r in read(storage).to_pylist()] == [1, 2]


def test_no_space(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    run = publish(storage)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OperatorError, match="no space left"):
            run.commit(Scn(20))

    assert run.commit(Scn(20)).end == 20


def test_a_table_is_described_once(tmp_path: Path) -> None:
    run = ArchiveWriter(LocalStorage(tmp_path))
    name = TableName("a", "b")
    first = run.describe(1, name, 1, {"columns": []}, name)
    assert run.describe(1, name, 1, {"columns": []}, name) == first
    assert len(list((tmp_path / "tables").iterdir())) == 1
