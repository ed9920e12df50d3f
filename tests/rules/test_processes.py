"""Rules travel to workers, which may have been forked from a process that has used them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FORKED = """
import os, sys, threading
from tests.hand_made import T, insert
from tests.rules.made import TYPES, put_through, rule_of, schema

rule = rule_of(schema(TYPES), rows="net > 1")
row = {"id": 1, "name": "a", "ssn": None, "net": "2.00", "tax": None, "region": "EU"}
is_ready, is_over = threading.Event(), threading.Event()

def work():
    assert len(put_through(rule, T(1, insert("customers", **row)))) == 1

def work_beside():
    work()
    is_ready.set()
    is_over.wait()

beside = threading.Thread(target=work_beside)
beside.start()
is_ready.wait()
work()
child = os.fork()
if child == 0:
    work()
    sys.exit(7)
_, status = os.waitpid(child, 0)
is_over.set()
beside.join()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_process_that_was_forked_from_one_with_connections_has_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr
