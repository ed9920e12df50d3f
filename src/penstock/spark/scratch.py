"""The private folder of one run: whatever Spark, its workers and Java put on this machine's disk is in there.

Rows and urls pass through such files. The folder is for this user alone, and goes with the run. That of a run that was
killed is removed by the next one: a run holds a lock on its folder's file `lock` for as long as it lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "penstock-run-"
_LOCK = "lock"

_locks: list[int] = []
"""Held until this process ends, however it ends."""


def make_folders(parents: str) -> str:
    """Make a private folder in each of some folders, and remove what dead runs left there.

    Args:
        parents: As Spark writes them, with commas in between; where empty, the folder for temporary files.

    Returns:
        The new folders, in the same form.
    """
    folders = []
    for parent in [Path(part.strip()) for part in parents.split(",") if part.strip()] or [Path(tempfile.gettempdir())]:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(parent)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = os.open(folder / "new", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Under its name the file was never without its lock.
        (folder / "new").rename(folder / _LOCK)
        _locks.append(lock)
        folders.append(str(folder))
    return ",".join(folders)


@contextmanager
def private_files(environment: Mapping[str, str | None]) -> Iterator[None]:
    """Have programs that are started inside make files for this user alone, with these variables set, or unset."""
    before = {name: os.environ.get(name) for name in environment}
    mask = os.umask(0o077)
    try:
        _set(environment)
        yield
    finally:
        os.umask(mask)
        _set(before)


def _set(environment: Mapping[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _remove_leftovers(parent: Path) -> None:
    """Remove this user's folders that no living run holds."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
                finally:
                    os.close(lock)
