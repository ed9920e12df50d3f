"""Files that appear whole, on a disk and through pyarrow; and what keeps them from being written or read."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from penstock.errors import ConfigError, OperatorError, RetryableError
from penstock.storage import (
    LocalStorage,
    MissingFileError,
    NameTakenError,
    ObjectStorage,
    Storage,
    open_storage,
)


@pytest.fixture(params=["disk", "pyarrow"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "disk":
        return LocalStorage(tmp_path / "a" / "b")
    return ObjectStorage(pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "a/b", "store://a/b")


def test_a_file_is_there_once_it_is_created(storage: Storage) -> None:
    assert storage.names("log") == []
    storage.create("log/1", b"one")
    storage.create("top", b"")
    assert storage.read("log/1") == b"one"
    assert storage.read("top") == b""
    assert storage.names("log") == ["1"]


def test_the_end_of_a_file_is_read_with_its_size(storage: Storage) -> None:
    storage.create("1", b"first and last")
    assert storage.read_end("1", 4) == (14, b"last")
    assert storage.read_end("1", 100) == (14, b"first and last")
    with pytest.raises(MissingFileError):
        storage.read_end("2", 4)


@pytest.mark.parametrize(
    ("make", "called"),
    [
        pytest.param(os.mkfifo, "a named pipe", id="fifo"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), "a device", id="device"),
        pytest.param(lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), "a socket", id="socket"),
        pytest.param(Path.mkdir, "something else", id="folder"),
    ],
)
def test_what_is_no_file_is_refused_and_not_waited_for(
    make: Callable[[Path], object], called: str, tmp_path: Path
) -> None:
    make(tmp_path / "1")
    storage = LocalStorage(tmp_path)

    with pytest.raises(OperatorError, match=called):
        storage.read("1")
    with pytest.raises(OperatorError, match=called):
        storage.open("1")


def test_when_a_file_was_written_is_told_as_long_as_it_is_there(storage: Storage, tmp_path: Path) -> None:
    storage.create("log/1", b"one")
    os.utime(tmp_path / "a" / "b" / "log" / "1", ns=(0, 1_700_000_000_123_456_789))
    assert storage.written_at_us("log/1") == 1_700_000_000_123_456
    assert storage.written_at_us("log/2") == 0


def test_a_name_is_given_once(storage: Storage) -> None:
    storage.create("log/1", b"one")
    with pytest.raises(NameTakenError, match=r"a file of this name already \(.*a/b/log/1\)"):
        storage.create("log/1", b"other")
    assert storage.read("log/1") == b"one"


def test_many_files_are_there_once_they_are_created(storage: Storage) -> None:
    files = [(f"log/{number}", str(number).encode() * 100) for number in range(300)]

    storage.create_all(files)

    assert sorted(storage.names("log")) == sorted(name.removeprefix("log/") for name, _ in files)
    assert all(storage.read(name) == content for name, content in files)
    storage.create_all([])


def test_of_many_files_those_before_one_whose_name_is_taken_are_there(storage: Storage) -> None:
    storage.create("log/2", b"two")

    with pytest.raises(NameTakenError, match=r"a file of this name already \(.*a/b/log/2\)"):
        storage.create_all([("log/1", b"1"), ("log/2", b"2"), ("log/3", b"3")])

    assert sorted(storage.names("log")) == ["1", "2"]
    assert (storage.read("log/1"), storage.read("log/2")) == (b"1", b"two")


def test_many_files_are_on_the_disk_before_they_have_names_and_get_them_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    link, sync = os.link, os.fsync

    def linked(source: Path, path: Path) -> None:
        done.append(path.name)
        link(source, path)

    def synced(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    storage = LocalStorage(tmp_path)
    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(os, "fsync", synced)
    storage.create_all([("2", b"a"), ("1", b"b"), ("3", b"c")])

    assert done == ["file", "file", "file", "2", "1", "3", "folder"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]


@pytest.mark.parametrize("at", range(1, 8))
def test_a_disk_that_is_full_amid_many_files_leaves_whole_ones_and_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    calls = iter(range(1, 100))
    storage = LocalStorage(tmp_path)

    def failing(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            if next(calls) == at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args)

        return call

    for name in ("write", "link", "fsync"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    with pytest.raises(OperatorError, match="no space"):
        storage.create_all([("1", b"one"), ("2", b"two")])

    there = sorted(path.name for path in tmp_path.iterdir())
    assert there in ([], ["1"], ["1", "2"])
    assert all((tmp_path / name).read_bytes() == {"1": b"one", "2": b"two"}[name] for name in there)


def test_a_file_that_is_missing(storage: Storage) -> None:
    with pytest.raises(MissingFileError, match=r"cannot read a file: there is none \(.*a/b/log/1\)"):
        storage.read("log/1")


def test_storage_travels(storage: Storage) -> None:
    storage.create("log/1", b"one")
    assert pickle.loads(pickle.dumps(storage)).read("log/1") == b"one"


def test_of_many_writers_of_one_name_one_writes(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    barrier, won = threading.Barrier(8), []

    def write(content: bytes) -> None:
        barrier.wait()
        try:
            storage.create("log/1", content)
        except NameTakenError:
            return
        won.append(content)

    threads = [threading.Thread(target=write, args=[str(n).encode()]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert won == [storage.read("log/1")]
    assert [entry.name for entry in (tmp_path / "log").iterdir()] == ["1"]


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o2750, 0o640), (0o700, 0o600), (None, 0o600)])
def test_who_may_read_the_folder_may_read_its_files(folder: int | None, file: int, umask: int, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    if folder is not None:
        root.mkdir()
        root.chmod(folder)
    before = os.umask(umask)
    try:
        LocalStorage(root).create("log/1", b"one")
    finally:
        os.umask(before)
    assert oct(root.stat().st_mode & 0o7777) == oct(folder or 0o700)
    assert oct((root / "log").stat().st_mode & 0o7777) == oct(folder or 0o700)
    assert oct((root / "log/1").stat().st_mode & 0o7777) == oct(file)


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.EACCES, OperatorError, "cannot write a file: no right to"),
        (errno.EROFS, OperatorError, "cannot write a file: no right to"),
        (errno.ENOSPC, OperatorError, "cannot write a file: no space left"),
        (errno.EDQUOT, OperatorError, "cannot write a file: no space left"),
        (errno.EIO, RetryableError, "cannot write a file: input/output error"),
    ],
)
def test_what_keeps_a_file_from_being_written_is_named(
    number: int, kind: type[Exception], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    storage = LocalStorage(tmp_path)
    (tmp_path / "log").mkdir()
    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(kind, match=text) as refused:
        storage.create("log/1", b"one")

    assert str(tmp_path / "log/1") in str(refused.value)
    assert list((tmp_path / "log").iterdir()) == []


def test_a_file_system_without_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OperatorError, match="the file system has no hard links"):
        LocalStorage(tmp_path).create("log/1", b"one")
    assert list((tmp_path / "log").iterdir()) == []


def test_a_path_on_which_there_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for do in (lambda s: s.create("log/1", b"one"), lambda s: s.read("log/1")):
        with pytest.raises(OperatorError, match="something else is there"):
            do(LocalStorage(tmp_path / "file"))


@pytest.mark.parametrize("path", ["/proc/nope/archive", "/proc/1/archive", "/sys/archive"])
def test_a_place_that_keeps_no_files_is_refused_before_and_while_it_is_written_to(path: str) -> None:
    storage = LocalStorage(Path(path))
    for call in (lambda: storage.check_writable("log"), lambda: storage.create("log/1", b"one")):
        with pytest.raises(OperatorError, match=r"cannot write a file: no (right to|folder or file can be made)") as no:
            call()
        assert path in no.value.where
        assert no.value.do


def test_looking_whether_a_place_can_be_written_to_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path / "a" / "b")
    storage.check_writable("log")

    def refuse(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "files have names here")
        return opened(path, flags, *rest)

    opened = os.open
    monkeypatch.setattr(os, "open", refuse)
    storage.check_writable("log")

    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_too_long_is_for_a_person_to_mend(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="file name too long"):
        LocalStorage(tmp_path / ("a" * 300)).create("log/1", b"one")


class Refusing(pafs.FileSystemHandler):
    """A store that refuses everything, in its own words."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _fail(self, *_: object) -> None:
        raise OSError(self.text)

    def get_type_name(self) -> str:
        return "refusing"

    def normalize_path(self, path: str) -> str:
        return path

    get_file_info = get_file_info_selector = create_dir = delete_dir = delete_dir_contents = _fail
    delete_root_dir_contents = delete_file = move = copy_file = _fail
    open_input_stream = open_input_file = open_output_stream = open_append_stream = _fail


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        ("AWS Error ACCESS_DENIED during PutObject: s3kr1t", OperatorError, "no right to"),
        ("AWS Error NETWORK_CONNECTION: s3kr1t", RetryableError, "the store is out of reach"),
    ],
)
def test_what_a_store_says_is_sorted_and_not_repeated(said: str, kind: type[Exception], text: str) -> None:
    storage = ObjectStorage(pafs.PyFileSystem(Refusing(said)), "bucket/a", "s3://bucket/a")
    calls: list[Callable[[], object]] = [
        lambda: storage.create("log/1", b""),
        lambda: storage.read("log/1"),
        lambda: storage.names("log"),
    ]
    for call in calls:
        with pytest.raises(kind, match=text) as refused:
            call()
        assert "s3kr1t" not in str(refused.value)
        assert "s3://bucket/a" in str(refused.value)


def test_a_path_is_taken_from_the_folder_it_is_given_with(tmp_path: Path) -> None:
    assert open_storage("archive", folder=tmp_path) == LocalStorage(tmp_path / "archive")
    assert open_storage("/var/archive", folder=tmp_path) == LocalStorage(Path("/var/archive"))
    assert open_storage("file:///var/archive", folder=tmp_path) == LocalStorage(Path("/var/archive"))


def test_an_object_store_is_named_without_its_key() -> None:
    found = open_storage("s3://me:s3kr1t@bucket/shop/archive?region=eu-west-1")
    assert found.label == "s3://bucket/shop/archive"
    assert isinstance(found, ObjectStorage)
    assert found.root == "bucket/shop/archive"


def test_an_url_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no files can be kept in http://\. Give a path"):
        open_storage("http://example.org/archive")
    with pytest.raises(ConfigError, match="the url of an object store cannot be read") as refused:
        open_storage("s3://me:s3kr1t@bucket/shop?nonsense=1")
    assert "s3kr1t" not in str(refused.value)
