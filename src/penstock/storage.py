"""A folder of files, on a disk or in an object store: each file appears whole, is durable then, and never changes.

`create` refuses a name that is taken. On a disk the file system itself sees to that, so of two writers one fails. An
object store that is reached through pyarrow has no such request: the name is looked for first, and two writers at the
very same moment may both believe that it was free.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import ConfigError, OperatorError, PenstockError, RetryableError

_STORES = ("s3", "gs", "gcs", "abfs", "abfss")
"""Stores in which an object appears whole or not at all, and in which it is seen by everyone from then on."""

_NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PLACE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EOPNOTSUPP, errno.EINVAL)
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""Errors of a file system that cannot make a file without a name."""

_PIECE_BYTES = 1 << 20

_MOST_OPEN = 128
"""Most files that are open at once."""

_SYNCS = 8
"""So many files are synced side by side."""

_REFUSED = ("ACCESS_DENIED", "ACCESS DENIED", "FORBIDDEN", "PERMISSION_DENIED", "UNAUTHENTICATED", "CREDENTIAL")
"""Where rights are missing, the messages of object stores hold one of these words."""


class NameTakenError(PenstockError):
    """There is a file of this name already."""


class MissingFileError(OperatorError):
    """There is no file of this name."""


class Storage(Protocol):
    """Where files are; small enough to travel to tasks."""

    @property
    def label(self) -> str:
        """The place, named without secrets."""

    def create(self, name: str, content: pa.Buffer | bytes) -> None:
        """Write a file whole, in whichever folder below the place, and return once it is durable.

        Raises:
            NameTakenError: There is one of this name.
            OperatorError: No right to write there, or no space.
            RetryableError: The place is out of reach.
        """

    def create_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write files, which appear in this order, and return once all are durable; raises as `create` does.

        Where it raises, those before the one at fault may be there.
        """

    def check_writable(self, folder: str) -> None:
        """Make sure, as far as that can be told without a trace, that files can be made in a folder below the place.

        Raises:
            OperatorError: No right to write there, or it is no place for files.
            RetryableError: The place is out of reach.
        """

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            MissingFileError: There is none.
            OperatorError: No right to read it.
            RetryableError: The place is out of reach.
        """

    def read_pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file piece by piece; raises as `read` does."""

    def read_end(self, name: str, most: int) -> tuple[int, bytes]:
        """Return how many bytes a file has, and the last ones, at most so many; raises as `read` does."""

    def size(self, name: str) -> int | None:
        """Return how many bytes a file has; None where there is none."""

    def written_at_us(self, name: str) -> int:
        """Return when a file was written, microseconds since 1970 in UTC; 0 where that is not known.

        It is the same for whoever asks, as long as the file stays where it is.
        """

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, in no order; none where there is no such folder."""


def check_place(place: str) -> None:
    """Make sure that a path or an url is one that `open_storage` takes, as far as its text goes.

    Raises:
        ConfigError: It is an url of something else, or lacks a part.
    """
    scheme, mark, _ = place.partition("://")
    if "\0" in place:
        raise ConfigError("the path of a folder holds a zero byte")
    if not mark:
        try:
            Path(place).expanduser()
        except RuntimeError as exc:
            raise ConfigError("the path of a folder begins with the home of a user that is not known") from exc
        return
    if scheme == "file":
        url = urlsplit(place)
        if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
            raise ConfigError("the url of a folder must name it from the root on", do="write file:///folder")
    elif scheme not in _STORES:
        known = ", ".join(f"{store}://" for store in _STORES)
        raise ConfigError(f"no files can be kept in {scheme}://", do=f"give a path, or an url that begins with {known}")
    elif not urlsplit(place).netloc:
        raise ConfigError("the url of an object store names no bucket", do=f"write {scheme}://bucket/folder")


def open_storage(place: str, *, folder: Path = Path()) -> Storage:
    """Open a path, which may be one below `folder`, or an url of an object store; nothing is touched yet.

    Raises:
        ConfigError: It is an url of something else, or lacks a part.
    """
    check_place(place)
    scheme, mark, _ = place.partition("://")
    if not mark:
        return LocalStorage((folder / Path(place).expanduser()).absolute())
    if scheme == "file":
        return LocalStorage(Path(urlsplit(place).path))
    label = _redacted_url(place)
    try:
        with _translated("reach", label):
            store, path = pafs.FileSystem.from_uri(place)
    except pa.ArrowException as exc:
        # The text of the cause may repeat a key.
        raise ConfigError("the url of an object store cannot be read", where=label) from exc
    return ObjectStorage(store, path, label)


@dataclass(frozen=True)
class LocalStorage:
    """Files on a disk, or on what is mounted as one.

    Files may be read, and written, by those who may do so with the folder `root`. Where there is no such folder it is
    made for this user alone.
    """

    root: Path

    @property
    def label(self) -> str:
        """The folder."""
        return str(self.root)

    def create(self, name: str, content: pa.Buffer | bytes) -> None:
        """Write beside the name, then give it the name: a link fails where there is a file."""
        path = self.root / name
        unnamed = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with _translated("write", str(path)):
            mode = self._make_folders(path.parent)
            try:
                with os.fdopen(os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    os.fchmod(file.fileno(), mode & 0o666)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                _link(unnamed, path)
            finally:
                with suppress(FileNotFoundError):
                    unnamed.unlink()
            _sync_folder(path.parent)

    def create_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write them beside their names, and give them these once the disk has all of them.

        A disk that is told to sync several files at once does it nearly as fast as one.
        """
        for first in range(0, len(files), _MOST_OPEN):
            self._create_some(files[first : first + _MOST_OPEN])

    def _create_some(self, files: Sequence[tuple[str, bytes]]) -> None:
        paths = [self.root / name for name, _ in files]
        unnamed = [path.with_name(f".{path.name}.{secrets.token_hex(8)}") for path in paths]
        with _translated("write", str(paths[0].parent)), ExitStack() as stack:
            for folder in {path.parent for path in paths}:
                mode = self._make_folders(folder)
                # Also where a name is taken: the files before it are there.
                stack.callback(_sync_folder, folder)
            for path in unnamed:
                stack.callback(path.unlink, missing_ok=True)
            handles = []
            for path, (_, content) in zip(unnamed, files, strict=True):
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                file = stack.enter_context(os.fdopen(handle, "wb", buffering=0))
                os.fchmod(file.fileno(), mode & 0o666)
                _write_whole(file.fileno(), content)
                handles.append(handle)
            with ThreadPoolExecutor(_SYNCS) as pool:
                for _ in pool.map(os.fsync, handles):
                    pass
            for source, path in zip(unnamed, paths, strict=True):
                _link(source, path)

    def check_writable(self, folder: str) -> None:
        """Make a file without a name in the folder, or in the nearest one above that is there."""
        path = self.root / folder
        with _translated("write", str(path)):
            while not os.path.lexists(path):
                path = path.parent
            _try_to_write(path)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self.open(name) as file, _translated("read", str(self.root / name)):
            return file.read()

    def open(self, name: str) -> BinaryIO:
        """Open a file to read it; raises as `read` does.

        A pipe or a device of this name is refused: to open or to read it may wait for ever.
        """
        path = self.root / name
        with _translated("read", str(path)):
            _refuse_odd(path.stat().st_mode, path)
            # It may have been exchanged meanwhile: so it is opened without waiting, and looked at again.
            file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)
            try:
                _refuse_odd(os.fstat(file.fileno()).st_mode, path)
            except BaseException:
                file.close()
                raise
            return file

    def read_pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file piece by piece."""
        with self.open(name) as file, _translated("read", str(self.root / name)):
            while piece := file.read(_PIECE_BYTES):
                yield piece

    def read_end(self, name: str, most: int) -> tuple[int, bytes]:
        """Return how many bytes a file has, and the last ones."""
        with self.open(name) as file, _translated("read", str(self.root / name)):
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            return size, file.read(most)

    def size(self, name: str) -> int | None:
        """Return how many bytes a file has; None where there is none."""
        with _translated("find", str(self.root / name)), suppress(FileNotFoundError):
            return (self.root / name).stat().st_size
        return None

    def written_at_us(self, name: str) -> int:
        """Return when a file was written, which moving it leaves as it is."""
        with _translated("find", str(self.root / name)), suppress(FileNotFoundError):
            return max(0, (self.root / name).stat().st_mtime_ns // 1000)
        return 0

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, without those that are being written."""
        with _translated("list", str(self.root / folder)), suppress(FileNotFoundError):
            return [entry.name for entry in os.scandir(self.root / folder) if not entry.name.startswith(".")]
        return []

    def _make_folders(self, folder: Path) -> int:
        """Make a folder at or below the root, and the root, durably; returns the root's permission bits."""
        _make_folder(self.root, 0o700)
        mode = stat.S_IMODE(self.root.stat().st_mode)
        _make_folder(folder, mode)
        return mode


@dataclass(frozen=True)
class ObjectStorage:
    """Files in an object store, or in any other file system that pyarrow knows.

    Attributes:
        root: The path below which they are.
        label: The place, named without secrets.
    """

    store: pafs.FileSystem
    root: str
    label: str

    def create(self, name: str, content: pa.Buffer | bytes) -> None:
        """Write an object where there is none; it is there, and durable, once the stream is closed."""
        path, where = self._path(name), f"{self.label}/{name}"
        with _translated("write", where):
            if self.store.get_file_info(path).type != pafs.FileType.NotFound:
                raise _taken(where)
            with self._open_new(path) as stream:
                stream.write(content)

    def create_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write one after the other."""
        for name, content in files:
            self.create(name, content)

    def check_writable(self, folder: str) -> None:
        """Ask the store for the folder: whether objects can be made in it shows with the first one only."""
        with _translated("find", f"{self.label}/{folder}"):
            self.store.get_file_info(self._path(folder))

    def read(self, name: str) -> bytes:
        """Return the content of an object."""
        path = self._path(name)
        with (
            _translated("read", f"{self.label}/{name}"),
            self.store.open_input_stream(path, compression=None) as stream,
        ):
            return bytes(stream.read())

    def read_pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object piece by piece."""
        path = self._path(name)
        with (
            _translated("read", f"{self.label}/{name}"),
            self.store.open_input_stream(path, compression=None) as stream,
        ):
            while piece := bytes(stream.read(_PIECE_BYTES)):
                yield piece

    def read_end(self, name: str, most: int) -> tuple[int, bytes]:
        """Return how many bytes an object has, and the last ones."""
        with _translated("read", f"{self.label}/{name}"), self.store.open_input_file(self._path(name)) as file:
            size = file.size()
            return size, bytes(file.read_at(min(most, size), max(0, size - most)))

    def size(self, name: str) -> int | None:
        """Return how many bytes an object has; None where there is none."""
        with _translated("find", f"{self.label}/{name}"):
            found = self.store.get_file_info(self._path(name))
        return int(found.size) if found.type == pafs.FileType.File else None

    def written_at_us(self, name: str) -> int:
        """Return when an object was written; a store may not say."""
        with _translated("find", f"{self.label}/{name}"):
            found = self.store.get_file_info(self._path(name))
        return max(0, (found.mtime_ns or 0) // 1000)

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder."""
        with _translated("list", f"{self.label}/{folder}"):
            found = self.store.get_file_info(pafs.FileSelector(self._path(folder), allow_not_found=True))
        return [info.base_name for info in found if info.type == pafs.FileType.File]

    def _open_new(self, path: str) -> pa.NativeFile:
        try:
            return self.store.open_output_stream(path, compression=None)
        except FileNotFoundError:
            # This is a file system: unlike an object store it needs the folders of a name to be there.
            self.store.create_dir(path.rpartition("/")[0])
            return self.store.open_output_stream(path, compression=None)

    def _path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}" if self.root else name


_ODD_FILES = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _refuse_odd(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for is_odd, called in _ODD_FILES:
        if is_odd(mode):
            raise OperatorError(f"cannot read a file: {called} has its name", where=str(path), do="take it away")


def _try_to_write(folder: Path) -> None:
    """Raise an `OSError` where no file can be made in a folder; leaves none."""
    unnamed = getattr(os, "O_TMPFILE", None)  # Linux alone has it.
    try:
        if unnamed is not None:
            os.close(os.open(folder, unnamed | os.O_WRONLY, 0o600))
            return
    except OSError as exc:
        if exc.errno not in _NO_UNNAMED_FILES or not folder.is_dir():
            raise
    trial = folder / f".penstock.{secrets.token_hex(8)}"
    try:
        os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    finally:
        with suppress(FileNotFoundError):
            trial.unlink()


def _write_whole(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def _link(unnamed: Path, path: Path) -> None:
    try:
        os.link(unnamed, path)
    except FileExistsError as exc:
        raise _taken(str(path)) from exc
    except OSError as exc:
        if exc.errno in _NO_SPACE:
            raise
        raise OperatorError(
            f"the file system has no hard links, without which one of two runs could overwrite the other:"
            f" {os.strerror(exc.errno or 0).lower()}",
            where=str(path.parent),
            do="use a folder on another file system, or an object store",
        ) from exc


def _make_folder(folder: Path, mode: int) -> None:
    """Make a folder, and those above it, durably; `mode` says what others may do there, whatever the umask says."""
    if folder.is_dir():
        return
    _make_folder(folder.parent, mode)
    with suppress(FileExistsError):
        folder.mkdir(0o700)
        folder.chmod(mode)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _taken(where: str) -> NameTakenError:
    return NameTakenError("there is a file of this name already", where=where)


def _redacted_url(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


@contextmanager
def _translated(verb: str, where: str) -> Iterator[None]:
    """Turn any error of a file into one of ours."""
    try:
        yield
    except FileNotFoundError as exc:
        if verb == "write":
            # A folder is missing and could not be made, though nothing was in the way: in /proc, for example.
            what = "cannot write a file: no folder or file can be made there"
            do = "give another path, of a file system that keeps files"
            raise OperatorError(what, where=where, do=do) from exc
        raise MissingFileError(f"cannot {verb} a file: there is none", where=where) from exc
    except OSError as exc:
        text = str(exc).upper()
        if exc.errno in _NO_RIGHTS or any(word in text for word in _REFUSED):
            do = "give this user the right to read and write there"
            raise OperatorError(f"cannot {verb} a file: no right to", where=where, do=do) from exc
        if exc.errno in _NO_SPACE:
            raise OperatorError(f"cannot {verb} a file: no space left", where=where, do="free space there") from exc
        if isinstance(exc, IsADirectoryError | NotADirectoryError | FileExistsError):
            do = "give another path"
            raise OperatorError(f"cannot {verb} a file: something else is there", where=where, do=do) from exc
        reason = os.strerror(exc.errno).lower() if exc.errno else "the store is out of reach"
        if exc.errno in _NO_PLACE:
            raise OperatorError(f"cannot {verb} a file: {reason}", where=where, do="give another path") from exc
        raise RetryableError(f"cannot {verb} a file: {reason}", where=where) from exc
