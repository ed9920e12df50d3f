"""What is said where Spark does not start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

STARTING = """
import sys
from penstock.errors import OperatorError
from penstock.spark.session import start_session
try:
    start_session("refused", lanes=1, settings={"spark.master": sys.argv[1]})
except OperatorError as exc:
    print(exc)
"""


@pytest.mark.parametrize(
    ("master", "reason"),
    [
        ("nowhere", "its Java process ended, and what it said stands above"),
        ("local[many]", "SparkException: Could not parse Master URL: 'local[many]'"),
    ],
)
def test_a_master_that_spark_does_not_take_is_told_in_one_line(master: str, reason: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MASTER"}
    command = [sys.executable, "-c", STARTING, master]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"Spark does not start: {reason} (master {master}). Correct `--master`, or the section `spark` of the pipeline"
        " file, or start the cluster\n"
    )
