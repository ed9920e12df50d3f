"""Reading an archive: slices of whole transactions, and nothing of what is not as it was written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock import change as c
from penstock.archive import Archive
from penstock.errors import MalformedInputError, OperatorError, PenstockError
from penstock.formats.change_file import Encoding
from penstock.history import CaptureOrigin, Consumer, History
from penstock.position import START, Anchor, Limit, Scn
from penstock.sinks.archive.files import ArchiveWriter, make_archive
from penstock.sources.change_files.reader import ArchiveSlice, FileReader
from penstock.sources.change_files.source import ChangeFiles
from penstock.storage import LocalStorage
from penstock.stream import Backlog
from tests.archives import BOOK, EVERYTHING, ITEM, NOON, changes_of, definition, publish, read


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    publish(LocalStorage(folder))
    return folder


@pytest.fixture
def copy(published: Path, tmp_path: Path) -> Path:
    """The archive, to be spoilt."""
    return shutil.copytree(published, tmp_path / "archive")


def archive(folder: Path) -> Archive:
    return Archive(LocalStorage(folder))


def slices(folder: Path, limit: Limit, after: Scn = START) -> list[ArchiveSlice]:
    source, found = ChangeFiles(archive(folder)), []
    while (part := source.next_slice(after, limit)) is not None:
        found.append(part)
        after = part.end
    return found


def read_slices(folder: Path, parts: list[ArchiveSlice]) -> list[tuple[int, int]]:
    reader = FileReader(archive(folder))
    batches = [batch for part in parts for batch in reader.read(part)]
    return changes_of(pa.Table.from_batches(batches, c.ARROW_SCHEMA))


def test_a_large_transaction_comes_alone(published: Path) -> None:
    found = slices(published, Limit(large_changes=30))
    assert [(p.commit_scns.tolist(), p.is_large) for p in found] == [
        ([1, 2, 5], False),
        ([6], True),
        ([7, 11, 12, 13], False),
    ]
    assert len({file.name for file in found[1].files if file.first <= 6 <= file.last}) > 1


def test_what_comes_later_is_found_later(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    run = publish(storage)
    source = ChangeFiles(archive(tmp_path))
    assert source.next_slice(Scn(13), Limit()) is None

    run.commit(Scn(17))

    part = source.next_slice(Scn(13), Limit())
    assert part is not None
    assert (len(part), part.after, part.end) == (0, 13, 17)
    assert source.next_slice(Scn(17), Limit()) is None
    assert source.tick() == 17


def test_a_slice_knows_the_last_record_at_or_before_its_end(published: Path) -> None:
    records = list(archive(published).records())
    ends = {0: archive(published).header_digest} | {r.end: r.sha256 for r in reversed(records) if r.end}
    for part in slices(published, Limit(max_transactions=1)):
        anchor = part.anchor
        assert anchor is not None
        assert anchor.scn == max(end for end in ends if end <= part.end)
        assert anchor.mark == ends[anchor.scn]
        assert part.cut is not None
        assert part.cut.scn == min(end for end in ends if end >= part.end)


def test_tables_are_those_that_the_run_described(published: Path) -> None:
    found = ChangeFiles(archive(published)).tables()
    assert [(v.id, v.table.name, v.table.version, v.root) for v in found] == [(0, ITEM, 1, ITEM), (1, BOOK, 1, BOOK)]
    assert found[0].definition == definition(ITEM)
    assert found[0].table.primary_key is not None


def test_tables_that_come_later_are_found_later(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    make_archive(storage, "shop", Encoding.CHANGES)
    source = ChangeFiles(archive(tmp_path))
    assert source.count_tables() == 0

    publish(storage)
    assert source.count_tables() == len(source.tables()) == 2

    run = ArchiveWriter(storage)
    run.acquire()
    run.commit(Scn(13), tables=[run.describe(1, BOOK, 2, definition(BOOK), BOOK)])
    assert source.count_tables() == 3
    assert [v.table.version for v in source.tables()] == [1, 1, 2]


def test_an_archive_that_is_new_holds_nothing(tmp_path: Path) -> None:
    make_archive(LocalStorage(tmp_path), "shop", Encoding.CHANGES)
    assert ChangeFiles(archive(tmp_path)).next_slice(START, Limit()) is None
    assert ChangeFiles(archive(tmp_path)).tables() == []
    assert ChangeFiles(archive(tmp_path)).tick() == START


ANYONE = Consumer("id", "copy")


def history(position: int = 0, *, origin: CaptureOrigin | None = None, anchor: Anchor | None = None) -> History:
    return History(ANYONE, origin, Scn(position), anchor, anchor, is_new=origin is None)


def test_a_new_process_begins_at_the_beginning(published: Path) -> None:
    found = ChangeFiles(archive(published)).join(history())
    assert found.position == START
    assert found.origin.set_id == archive(published).header.id
    assert found.anchor == Anchor(START, archive(published).header_digest)


def test_a_process_goes_on_where_it_stood_whatever_came_later(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    run = publish(storage)
    source = ChangeFiles(archive(tmp_path))
    origin = source.join(history()).origin
    (part,) = slices(tmp_path, Limit())
    # Records that end at the same position: a run begins, and stops.
    run = ArchiveWriter(storage)
    run.acquire()
    run.acquire()
    run.commit(Scn(20))

    for one_source in (source, ChangeFiles(archive(tmp_path))):
        found = one_source.join(history(13, origin=origin, anchor=part.anchor))
        assert (found.position, found.anchor) == (13, part.anchor)
        assert one_source.next_slice(Scn(13), Limit(), anchor=found.anchor) is not None


def test_a_process_that_broke_off_inside_a_slice_of_many_records_goes_on_from_there(published: Path) -> None:
    source = ChangeFiles(archive(published))
    origin = source.join(history()).origin
    first, *_ = slices(published, Limit(max_changes=1))
    (rest,) = slices(published, Limit(), first.end)
    assert len(rest.commit_scns) > 3

    for position in rest.commit_scns[:-1].tolist():
        # What the ledger says then: the cut before the slice, and that behind it of which a part is applied.
        broke_off = History(ANYONE, origin, Scn(position), first.anchor, rest.cut, is_new=False)
        found = source.join(broke_off)
        assert found.position == position
        part = ChangeFiles(archive(published)).next_slice(Scn(position), Limit(), anchor=found.anchor)
        assert part is not None
        assert part.commit_scns.tolist() == [scn for scn in rest.commit_scns.tolist() if scn > position]


def test_a_process_that_broke_off_inside_a_slice_of_another_archive_is_refused(published: Path, tmp_path: Path) -> None:
    source = ChangeFiles(archive(published))
    origin = source.join(history()).origin
    first, *_ = slices(published, Limit(max_changes=1))
    (rest,) = slices(published, Limit(), first.end)
    other = Anchor(first.end, "0" * 64)
    with pytest.raises(OperatorError, match="does not hold what follows position 7"):
        source.join(History(ANYONE, origin, Scn(7), other, rest.cut, is_new=False))
    with pytest.raises(OperatorError, match="restored to an older state"):
        source.join(History(ANYONE, origin, Scn(7), first.anchor, Anchor(rest.end, "0" * 64), is_new=False))


def test_a_process_that_has_followed_another_archive_is_refused(published: Path, tmp_path: Path) -> None:
    publish(LocalStorage(tmp_path))
    origin = ChangeFiles(archive(tmp_path)).join(history()).origin
    (part,) = slices(tmp_path, Limit())
    source = ChangeFiles(archive(published))
    with pytest.raises(OperatorError, match="not the one that the target was filled from"):
        source.join(history(13, origin=origin, anchor=part.anchor))
    with pytest.raises(OperatorError, match="the archive is not the one that was followed: at position 13"):
        source.next_slice(Scn(13), Limit(), anchor=part.anchor)


def test_an_archive_that_was_brought_back_older_is_refused(copy: Path) -> None:
    source = ChangeFiles(archive(copy))
    origin = source.join(history()).origin
    (part,) = slices(copy, Limit())
    (copy / f"log/{8:020}.json").unlink()
    with pytest.raises(OperatorError, match="restored to an older state"):
        ChangeFiles(archive(copy)).join(history(13, origin=origin, anchor=part.anchor))


def test_the_backlog_is_what_lies_behind_a_position(published: Path) -> None:
    found = ChangeFiles(archive(published)).backlog(Scn(5))
    assert found.changes == sum(1 for scn, _ in EVERYTHING if scn > 5)
    assert found.oldest_at == NOON + timedelta(seconds=6)
    assert 0 < found.size_bytes < sum(path.stat().st_size for path in published.glob("changes/*"))
    (*_, last) = archive(published).records()
    assert ChangeFiles(archive(published)).backlog(Scn(13)) == Backlog(0, None, 0, last.written_at)


def one(folder: Path, pattern: str) -> Path:
    """The last file of a kind."""
    return sorted(folder.glob(pattern))[-1]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("spoil", "kind", "text"),
    [
        (cut, MalformedInputError, "a file of the archive was cut short: it has"),
        (lengthen, MalformedInputError, "a file of the archive was written to: it has"),
        (alter, MalformedInputError, "a file of the archive was altered"),
        (Path.unlink, OperatorError, "a file of the archive is missing"),
    ],
    ids=["cut", "lengthened", "altered", "missing"],
)
def test_of_a_spoilt_data_file_nothing_is_handed_on(
    spoil: Callable[[Path], None], kind: type[PenstockError], text: str, copy: Path
) -> None:
    bad = one(copy, "changes/*")
    spoil(bad)
    (part,) = slices(copy, Limit())
    handed_on: list[pa.RecordBatch] = []

    with pytest.raises(kind, match=text) as refused:
        handed_on.extend(FileReader(archive(copy)).read(part))

    assert refused.value.where == f"{bad}, positions 11 to 13"
    assert changes_of(pa.Table.from_batches(handed_on)) == [(scn, seq) for scn, seq in EVERYTHING if scn < 11]


@pytest.mark.parametrize("spoil", [cut, alter, Path.unlink], ids=["cut", "altered", "missing"])
def test_of_a_spoilt_table_nothing_is_handed_on(spoil: Callable[[Path], None], copy: Path) -> None:
    bad = one(copy, "tables/*")
    spoil(bad)
    with pytest.raises(PenstockError, match=r"a file of the archive (was altered|is missing)") as refused:
        ChangeFiles(archive(copy)).tables()
    assert str(bad) in refused.value.where


@pytest.mark.parametrize("spoil", [cut, alter], ids=["cut", "altered"])
@pytest.mark.parametrize("number", [1, 3, 8])
def test_a_spoilt_record_is_named(number: int, spoil: Callable[[Path], None], copy: Path) -> None:
    bad = copy / f"log/{number:020}.json"
    spoil(bad)
    with pytest.raises(MalformedInputError, match="record was cut short or altered") as refused:
        read(LocalStorage(copy))
    assert refused.value.where == str(bad)


def test_a_gap_in_the_log_is_named(copy: Path) -> None:
    (copy / f"log/{4:020}.json").unlink()
    with pytest.raises(OperatorError, match="lacks record 4, and has later ones up to 8"):
        ChangeFiles(archive(copy)).next_slice(START, Limit())


def test_a_record_of_another_archive_is_refused(copy: Path, tmp_path: Path) -> None:
    publish(LocalStorage(tmp_path / "other"))
    name = f"log/{8:020}.json"
    shutil.copy(tmp_path / "other" / name, copy / name)
    with pytest.raises(MalformedInputError, match="record is of another archive") as refused:
        read(LocalStorage(copy))
    assert f"{name}, position 13" in refused.value.where


def test_the_header_of_another_archive_is_refused(copy: Path, tmp_path: Path) -> None:
    publish(LocalStorage(tmp_path / "other"))
    shutil.copy(tmp_path / "other" / "archive.json", copy / "archive.json")
    with pytest.raises(MalformedInputError, match="record is of another archive"):
        read(LocalStorage(copy))


def test_records_in_each_others_place_are_refused(copy: Path) -> None:
    first, second = copy / f"log/{7:020}.json", copy / f"log/{8:020}.json"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(MalformedInputError, match="record does not follow the one before it"):
        read(LocalStorage(copy))


def test_a_record_that_another_run_has_overwritten_is_refused(copy: Path, tmp_path: Path) -> None:
    """A store that cannot refuse one of two writers may end up so."""
    early = shutil.copytree(copy, tmp_path / "early")
    for number in (7, 8):
        (early / f"log/{number:020}.json").unlink()
    publish(LocalStorage(early))
    shutil.copy(early / f"log/{7:020}.json", copy / f"log/{7:020}.json")
    with pytest.raises(MalformedInputError, match="record does not follow the one before it"):
        read(LocalStorage(copy))


def test_no_archive(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"there is no change archive \(.*archive\.json\)\. See whether the path"):
        ChangeFiles(archive(tmp_path / "nowhere")).next_slice(START, Limit())


def test_a_header_that_is_none(copy: Path) -> None:
    (copy / "archive.json").write_bytes(b"")
    with pytest.raises(MalformedInputError, match="not the header"):
        ChangeFiles(archive(copy)).next_slice(START, Limit())


def test_counts_that_do_not_match_are_refused(published: Path) -> None:
    (part,) = slices(published, Limit())
    wrong = ArchiveSlice(**vars(part) | {"changes": part.changes + np.eye(1, len(part), 2, np.int64)[0]})
    with pytest.raises(MalformedInputError, match="has 2 changes in the archive's files where its record says 3") as e:
        list(FileReader(archive(published)).read(wrong))
    assert "position 5" in e.value.where


def test_parquet_is_read_alike(tmp_path: Path) -> None:
    publish(LocalStorage(tmp_path), Encoding.PARQUET)
    assert read_slices(tmp_path, slices(tmp_path, Limit(max_transactions=2))) == EVERYTHING
