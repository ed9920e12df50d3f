"""What makes Java start sooner, kept from one run to the next: the command that Spark's scripts end up with, which take
a Java process of their own to work it out, and an archive of the classes that Spark loads, which Java maps into memory.

`prepare` makes both. They are code that later runs will execute: a folder that anybody else can write to is not used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

COMMAND, ARCHIVE = "command.json", "classes.jsa"
MEMORY, OPTIONS = "1077m", "-Dpenstock.options=here"
"""What stands in the command for the memory of a run, and for Java's options."""

QUIET = ("-Xlog:cds*=off",)
"""Java is to say nothing of classes that it cannot keep, and of an archive that does not fit it."""

_FORMAT = "1"
_KEPT_S = 30 * 86400.0
"""How long something prepared is kept that nothing has used."""

_OURS = ("SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP")
_OTHERS = ("PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR", "YARN_CONF_DIR")


@dataclass(frozen=True, slots=True)
class Prepared:
    """How Spark's scripts would start Java, and what makes that quicker."""

    java: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    archive: Path | None = None

    def command(self, memory: str, options: Sequence[str]) -> list[str]:
        """Say the command for this much memory and with these options of Java's, without Spark's settings."""
        command = [self.java]
        if self.archive is not None:
            # An archive that does not fit is ignored.
            command += [f"-XX:SharedArchiveFile={self.archive}", "-Xshare:auto", *QUIET]
        for argument in self.arguments:
            command += options if argument == OPTIONS else [argument.replace(f"-Xmx{MEMORY}", f"-Xmx{memory}")]
        return command


def is_plain() -> bool:
    """Whether Spark's scripts would find nothing of the user's that changes the command."""
    names = [name for name in os.environ if name.startswith("SPARK_") and name not in _OURS]
    return not (names or any(name in os.environ for name in _OTHERS) or (spark_home() / "conf").exists())


def find() -> Prepared | None:
    """Return what an earlier run had prepared for this Java and this Spark, if that can be trusted."""
    java, folder = find_java(), cache()
    if java is None or folder is None:
        return None
    entry = folder / key(java)
    if not is_private(entry):
        return None
    try:
        kept = json.loads((entry / COMMAND).read_text())
    except (OSError, ValueError):
        return None
    with suppress(OSError):
        # Note the last use; fails, without harm, where the folder is read-only.
        os.utime(entry)
    archive = entry / ARCHIVE
    return Prepared(java, kept["arguments"], kept["environment"], archive if archive.exists() else None)


def have_made() -> None:
    """Have it made in the background for the runs to come, unless there is nowhere to keep it."""
    if cache() is None or not is_plain():
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.spark.prepare"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    threading.Thread(target=process.wait, name="prepare", daemon=True).start()


def cache() -> Path | None:
    """The folder for what is prepared: PENSTOCK_CACHE, where that is empty none, or the user's own."""
    given = os.environ.get("PENSTOCK_CACHE")
    if given is not None:
        return Path(given) if given else None
    home = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):
        return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "penstock"
    return None


def key(java: str) -> str:
    """What is prepared for one Java and one Spark is of no use to another."""
    jars = spark_home() / "jars"
    parts = [_FORMAT, java, str(jars)]
    parts += [f"{found.st_size} {found.st_mtime_ns}" for found in (Path(java).stat(), jars.stat())]
    return "java-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def is_private(folder: Path) -> bool:
    """Whether only this user and root can put files in this folder, or another folder in its place."""
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            return False
        return all(map(_is_safe, folder.resolve(strict=True).parents))
    except OSError:
        return False


def remove_unused(folder: Path) -> None:
    """Remove what was prepared for a Java or a Spark that is gone."""
    for entry in folder.glob("java-*"):
        with suppress(OSError):
            if time.time() - entry.lstat().st_mtime > _KEPT_S:
                shutil.rmtree(entry)


def find_java() -> str | None:
    """Return where the Java is that Spark would use, if there is one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    with suppress(OSError):
        return str(Path(java).resolve(strict=True)) if java else None
    return None


def spark_home() -> Path:
    """The folder of PySpark, which is not imported for it."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _is_safe(folder: Path) -> bool:
    found = folder.stat()
    # In a folder with the sticky bit a user cannot replace another user's files.
    is_closed = not found.st_mode & 0o022 or bool(found.st_mode & stat.S_ISVTX)
    return found.st_uid in (0, os.getuid()) and is_closed
