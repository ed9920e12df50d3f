"""Looks at disks and folders: whether there is room, and whether this user may read and write there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
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
    for folder, what in {**folders, **_published(config)}.items():
        yield Look("disk", folder, lambda folder=folder, what=what: _written(folder, what))  # type: ignore[misc]
    capture = None if config is None else config.capture.path
    if capture is not None and "://" not in capture:
        yield Look("folder", capture, lambda: _read(Path(capture)))


def _published(config: PipelineConfig | None) -> Mapping[str, str]:
    path = None if config is None or config.publish is None else config.publish.path
    return {path: "the folder that is published to"} if path is not None and "://" not in path else {}


def _written(folder: str, what: str) -> Iterator[Finding]:
    """Say whether there is room in a folder, and whether this user may write there and in the folders below."""
    there = next(path for path in [Path(folder), *Path(folder).absolute().parents] if path.exists())
    below = [path for path in islice(there.iterdir(), _MOST_FILES) if path.is_dir()] if _is_whole(there, folder) else []
    for path in (there, *below):
        if not os.access(path, os.W_OK | os.X_OK):
            yield Finding(Severity.FAULT, "disk", f"{what}: this user may not write there", str(path), _chown(path))
            return
    usage = shutil.disk_usage(there)
    yield disk_finding(what, usage.free, usage.total, folder)
    files = os.statvfs(there)
    # Some file systems have no limit, and say 0.
    if files.f_files and files.f_favail < _FEW_FILES_LEFT:
        found = f"{what}: the file system takes {files.f_favail} more files"
        yield Finding(Severity.FAULT, "disk", found, folder, f"df -i {folder}; then remove files there")


def _is_whole(there: Path, folder: str) -> bool:
    """Whether it is a folder of ours that is there, and not one of everybody's."""
    return (
        there == Path(folder) and there.is_dir() and os.access(there, os.R_OK) and there != Path(tempfile.gettempdir())
    )


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


def _chown(path: Path) -> str:
    return f"sudo chown -R {os.getuid()} {path}; or name another folder"
