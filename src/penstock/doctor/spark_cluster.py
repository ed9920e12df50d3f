"""Looks at the Spark cluster that a pipeline file names: its master, and the Python and Java of an executor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

from penstock.config import PipelineConfig
from penstock.doctor.looks import Look
from penstock.examination import Finding, Severity
from penstock.spark.settings import settle

_CONNECT_S = 3.0
_ENDS_S = 0.5
"""So much sooner than the looks the task is given up, so that it is ended and told."""

_DO = "correct `master` in the section `spark` of the pipeline file, or see the master's web page for free workers"


def looks(config: PipelineConfig, *, timeout_s: float) -> Iterator[Look]:
    """Yield looks at the cluster that the file, or the environment, names; none where Spark runs here."""
    master = settle("doctor", lanes=1, settings=config.spark_settings).master
    kind, _, hosts = master.partition("://")
    if kind != "spark":
        return
    yield Look("spark", master, lambda: _look(config, master, hosts, max(1.0, timeout_s - _ENDS_S)))


def _look(config: PipelineConfig, master: str, hosts: str, timeout_s: float) -> Iterator[Finding]:
    """Reach the masters, of which one is enough, and have an executor run a task."""
    reasons = []
    for one in hosts.split(","):
        host, _, port = one.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
            break
        except (OSError, ValueError) as exc:
            reasons.append(f"{one}: {getattr(exc, 'strerror', None) or type(exc).__name__}")
    else:
        what = f"Spark's master does not answer: {'; '.join(reasons)}"
        yield Finding(Severity.FAULT, "spark", what, master, f"start the cluster, or {_DO}")
        return
    yield from _tried(config, master, timeout_s)


def _tried(config: PipelineConfig, master: str, timeout_s: float) -> Iterator[Finding]:
    """Run a task in a program of its own, which ends with all that it has started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.doctor.spark_task"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(json.dumps(dict(config.spark_settings)).encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        what = f"the cluster has not run a task within {timeout_s:.0f} s"
        do = f"penstock doctor --timeout 60; if it stays so, {_DO}"
        yield Finding(Severity.WARNING, "spark", what, master, do)
        return
    finally:
        # Spark's Java is in its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = json.loads(told or b"{}")
    if "python" not in found:
        what = found.get("error", "the cluster has not run a task")
        do = "install the same Python and Penstock on the workers, at the path that PYSPARK_PYTHON names"
        yield Finding(Severity.FAULT, "spark", what, master, do)
        return
    yield Finding(Severity.OK, "spark", f"an executor runs Python {found['python']}, Java {found['java']}", master)
    here, there = found["driver_java"].partition(".")[0], found["java"].partition(".")[0]
    if there and here != there:
        what = f"executors run Java {found['java']}, and this machine Java {found['driver_java']}"
        do = "install the same Java everywhere, and let JAVA_HOME name it on the workers"
        yield Finding(Severity.WARNING, "spark", what, master, do)
