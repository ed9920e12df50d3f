"""`penstock demo`, shorter than users see it."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from tests.program import Program


def test_the_demo_fails_one_transaction_on_purpose_mends_it_and_ends_identical(tmp_path: Path) -> None:
    # It brings servers of its own; the urls are never used.
    done = Program(tmp_path, "", "", name="none")("demo", "--seconds", "5")

    assert done.code == 0, done.out + done.err
    for text in (
        "on purpose",
        "in the error queue: demo.1",
        "errors retry --all: 1 applied",
        "source and target identical",
    ):
        assert text in done.out, done.out
    facts = dict(line.split("  ", 1) for line in done.out.split("\n\n")[-1].strip().splitlines())
    assert int(facts["transactions"].replace(",", "")) > 100
    assert facts["errors left"].strip() == "0"


def test_a_demo_that_is_told_to_stop_ends_the_servers_that_it_started(tmp_path: Path) -> None:
    with Program(tmp_path, "", "", name="none").start("demo", "--seconds", "300") as demo:
        demo.await_line("pgbench: ")
        assert demo.end() == 130, demo.said

    assert demo.said.rstrip().endswith("- stopping the run and both servers"), demo.said
    for port in re.findall(r"on port (\d+)", demo.said):
        with socket.socket() as server:
            assert server.connect_ex(("127.0.0.1", int(port))) != 0
