"""A program that runs one task on a Spark cluster, and prints which Python and Java ran it, or why none did, as JSON.

It is given Spark's settings as JSON on standard input. `spark_cluster` starts it, and ends it when it takes too long.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the task."""
    from penstock.errors import PenstockError
    from penstock.spark.session import start_context

    # One core is enough, and one failure says why.
    settings = {**json.load(sys.stdin), "spark.cores.max": "1", "spark.task.maxFailures": "1"}
    try:
        context = start_context("penstock doctor", lanes=1, settings=settings)
        ((python, java),) = context.parallelize([0], 1).mapPartitions(_versions).collect()
        driver = context._jvm.System.getProperty("java.version")  # type: ignore[union-attr]
        found = {"python": python, "java": java, "driver_java": driver}
    except PenstockError as exc:
        found = {"error": exc.what}
    except Exception as exc:
        found = {"error": reason_of(str(exc))}
    # Standard output may have lines of Spark's.
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def _versions(_: Any) -> Iterator[tuple[str, str]]:
    """The versions of the worker's Python, and of the Java that it was started by; empty where that cannot be seen."""
    pid, java = os.getppid(), ""
    while pid > 1 and not java:
        try:
            java = _java_of(Path(f"/proc/{pid}/exe").readlink())
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    yield platform.python_version(), java


def _java_of(program: Path) -> str:
    if program.name != "java":
        return ""
    release = (program.parents[1] / "release").read_text()
    found = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.M)
    return found[1] if found else ""


def reason_of(text: str) -> str:
    """Say in a few words why a task has failed."""
    other = re.search(r"different version: ([0-9.]+) than that in driver", text)
    if other is not None:
        return f"executors run Python {other[1]}, and this machine Python {platform.python_version()}"
    missing = re.search(r"No module named '?([A-Za-z0-9_.]+)", text)
    if missing is not None:
        return f"the Python of executors has no module {missing[1].rstrip('.')}"
    return "the cluster has not run a task"


if __name__ == "__main__":
    main()
