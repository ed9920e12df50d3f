"""Looks at disks and folders: whether there is room, and whether this user may read and write there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from penstock.config import PipelineConfig
from penstock.doctor.looks import Look
from penstock.examination import Finding, Severity, disk_finding
from penstock.spark.settings import settle

_MOST_FILES = 5_000
"""So many files of a folder are looked at."""

_FEW_FILES_LEFT = 1_000


def looks(config: PipelineConfig | None) -> Iterator[Look]:
    """Yield a look for each folder: a disk that hangs keeps no other waiting."""
    folders = {tempfile.gettempdir(): "temporary files"}
    settings = config.spark_settings if config is not None else {}
    for folder in filter(None, settle("doctor", lanes=1, settings=settings).parents.split(",")):
        folders[folder] = "Spark's local folder"
    for folder, what in folders.items():
        yield Look("disk", folder, partial(_written, folder, what))
    publish = None if config is None or config.publish is None else config.publish.path
    if publish is not None and "://" not in publish:
        yield Look("disk", publish, partial(_written, publish, "the folder that is published to", is_ours=True))
    capture = None if config is None else config.capture.path
    if capture is not None and "://" not in capture:
        yield Look("folder", capture, lambda: _read(Path(capture)))


def _written(folder: str, what: str, *, is_ours: bool = False) -> Iterator[Finding]:
    """Say whether there is room in a folder, and whether this user may write there.

    Args:
        is_ours: The folders in it are written, too; others belong to whoever made them.
    """
    there = next(path for path in [Path(folder), *Path(folder).absolute().parents] if path.exists())
    written = [there]
    if is_ours and there == Path(folder) and there.is_dir() and os.access(there, os.R_OK):
        written += [path for path in islice(there.iterdir(), _MOST_FILES) if path.is_dir()]
    for path in written:
        if not os.access(path, os.W_OK | os.X_OK):
            do = f"sudo chown -R {os.getuid()} {path}; or name another folder"
            yield Finding(Severity.FAULT, "disk", f"{what}: this user may not write there", str(path), do)
            return
    usage = shutil.disk_usage(there)
    yield disk_finding(what, usage.free, usage.total, folder)
    files = os.statvfs(there)
    # Some file systems have no limit, and say 0.
    if files.f_files and files.f_favail < _FEW_FILES_LEFT:
        found = f"{what}: the file system takes {files.f_favail} more files"
        yield Finding(Severity.FAULT, "disk", found, folder, f"df -i {folder}; then remove files there")


def _read(folder: Path) -> Iterator[Finding]:
    """Say whether this user may read a folder and the files in it."""
    if not folder.is_dir():
        what = "the folder that is captured from is not there" if not folder.exists() else "it is no folder"
        yield Finding(Severity.FAULT, "folder", what, str(folder), f"ls -ld {folder}; then correct capture.path")
        return
    # Files below folders, as an archive has them.
    for path in (folder, *islice(folder.rglob("*"), _MOST_FILES)):
        if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
            what = "this user may not read what is captured"
            yield Finding(Severity.FAULT, "folder", what, str(path), f"sudo setfacl -R -m u:{os.getuid()}:rX {folder}")
            return
    yield Finding(Severity.OK, "folder", "what is captured can be read", str(folder))
