"""Disks that are full for as long as a test wants.

Where this user may mount one, a tiny file system in memory. Elsewhere the same errors in the same places: a server that
answers what one on a full disk answers, and processes that may write no file beyond a size.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import psutil
import psycopg


def can_mount() -> bool:
    """Whether this user may mount a file system in memory."""
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(_mount(folder, 1), check=False, capture_output=True).returncode != 0:
            return False
        subprocess.run(["umount", folder], check=True)
        return True


class SmallDisk:
    """A file system in memory, of so many megabytes, while the block runs. Everybody may write to it."""

    def __init__(self, *, megabytes: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-disk-"))
        self._megabytes = megabytes

    def __enter__(self) -> SmallDisk:
        subprocess.run(_mount(self.folder, self._megabytes), check=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Lazily: whoever still has a file open there may close it later.
        subprocess.run(["umount", "-l", self.folder], check=True)
        self.folder.rmdir()

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Have no byte left while the block runs."""
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        try:
            yield
        finally:
            filler.unlink()

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """Let nobody write while the block runs, not even root."""
        subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)
        try:
            yield
        finally:
            subprocess.run(["mount", "-o", "remount,rw", self.folder], check=True)


@contextlib.contextmanager
def refusing_to_grow(url: str, table: str) -> Iterator[None]:
    """Have a table of this server answer as if its disk were full."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;"
            f"CREATE TRIGGER no_room BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION no_room();"
            f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER no_room"
        )
        try:
            yield
        finally:
            connection.execute("DROP FUNCTION no_room CASCADE")


@contextlib.contextmanager
def no_large_files(processes: Sequence[psutil.Process], *, most_bytes: int) -> Iterator[None]:
    """Have every write of these processes fail that would make a file larger."""
    before = [(process, process.rlimit(resource.RLIMIT_FSIZE)) for process in processes]
    for process, (_, hard) in before:
        process.rlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        for process, limits in before:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(resource.RLIMIT_FSIZE, limits)


def tablespace_on(disk: SmallDisk, url: str, name: str, *, owner: int) -> None:
    """Make a tablespace on a disk, for a server that runs as the system's user `owner`."""
    folder = disk.folder / name
    folder.mkdir()
    os.chown(folder, owner, -1)
    disk.folder.chmod(0o777)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE {name} LOCATION '{folder}'")


def _mount(folder: Path | str, megabytes: int) -> list[str]:
    return ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=1777", "none", str(folder)]
