"""Spark's settings that suit small batches of Arrow data, and which of a run's settings win."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    # The plan of a batch is fixed and tiny; re-planning it costs more than it could gain.
    "spark.sql.adaptive.enabled": "false",
    # A second copy of an apply task would only be fenced off.
    "spark.speculation": "false",
    # Batches live for seconds on local disk; packing them costs more than it saves.
    "spark.shuffle.compress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.python.worker.reuse": "true",
    # Spark keeps finished jobs for its web page, which is off; a run has several jobs a second, for weeks.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.python.daemon.module": "penstock.worker_daemon",
}

# The JVM only passes Arrow data on; compiling it thoroughly would take more of a core than it gives back.
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # By a secret that Spark makes up itself and shows to no other process.
    "spark.authenticate": "true",
}
"""Defaults where Spark and its tasks are one process, which no other process has to reach."""

_IS_LOCAL = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?")
IS_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""How settings are called whose values no message and no argument may show."""
_JAVAS = ("spark.driver.extra", "spark.driver.default", "spark.submit.")
"""How settings begin that Spark's scripts turn into something other than an argument."""

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings that Spark is started with."""

    all: Mapping[str, str]
    is_local: bool
    """Spark and its tasks are one process on this machine."""
    is_reached: bool
    """Others have to reach it, at an address that the user or Spark finds."""
    can_be_prepared: bool
    """Java runs here, and only Penstock decides how; see `prepared`."""

    @property
    def master(self) -> str:
        """Where its tasks run, as Spark writes it."""
        return self.all.get("spark.master") or os.environ["MASTER"]

    @property
    def parents(self) -> str:
        """The folders that the folders of this run are to be made in; see `scratch.make_folders`."""
        return os.environ.get("SPARK_LOCAL_DIRS") or self.all.get("spark.local.dir", "")

    def environment(self, folders: str) -> Mapping[str, str]:
        """Variables that Java is started with, for a run with these folders."""
        variables = {"SPARK_LOCAL_DIRS": folders, "TMPDIR": _first(folders)}
        if not self.is_reached and "SPARK_LOCAL_IP" not in os.environ:
            # Spark's web page asks for no login, so only this machine may reach it.
            variables["SPARK_LOCAL_IP"] = "127.0.0.1"
        return variables

    def arguments(self, folders: str) -> Mapping[str, str]:
        """The settings that Java is started with, for a run with these folders.

        They become arguments of a command, which everybody on the machine can read; secrets follow by another way.
        """
        options = f"{self.all[DRIVER_OPTIONS]} -Djava.io.tmpdir={_first(folders)}"
        public = {key: value for key, value in self.all.items() if not IS_SECRET.search(key)}
        return {**public, DRIVER_OPTIONS: options}


def settle(name: str, *, lanes: int, settings: Mapping[str, str], submitted: Mapping[str, str] = {}) -> SparkSettings:
    """Say what Spark is started with; see `session.start_session`."""
    log_settings = files(__package__).joinpath("log4j2.properties")
    given = {**submitted, "spark.app.name": name, **settings}
    master = given.get("spark.master") or os.environ.get("MASTER")
    ours = {**_SETTINGS, DRIVER_OPTIONS: f"-Dlog4j2.configurationFile={log_settings} {_JAVA_OPTIONS}"}
    if submitted:
        # Java runs already, and logs as spark-submit has it log: every job, several times a second.
        ours |= {"spark.log.level": "WARN"}
    if master is None:
        ours |= {"spark.master": f"local[{max(2, lanes)}]"}
    is_local = master is None or _IS_LOCAL.fullmatch(master) is not None
    if is_local:
        ours |= _LOCAL
    return SparkSettings(
        {**ours, **given},
        is_local=is_local,
        is_reached="spark.driver.bindAddress" in given or not is_local,
        can_be_prepared=is_local and not any(key.startswith(_JAVAS) for key in given),
    )


def _first(folders: str) -> str:
    return folders.split(",", maxsplit=1)[0]
