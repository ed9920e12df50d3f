"""A value that the target cannot hold is an error of its change: the rest is applied, and the error queue names it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.program import Program

DATA = Path(__file__).parents[1] / "data" / "refused"

FILE = """\
version: 1
name: lab
connections:
  copy: {type: postgres, url: "${env:COPY_URL}"}
capture:
  source: debezium
  path: events
  tables: ["*.*"]
  debezium:
    prefix: shop
apply:
  connection: copy
"""

Begin = Callable[..., Program]


@pytest.fixture
def begin(lab: Lab, tmp_path: Path) -> Begin:
    """Set up a pipeline from files of events."""

    def begin(events: str, **settings: object) -> Program:
        program = Program(tmp_path, lab.source_url, lab.target_url, name="lab")
        text = FILE + "".join(f"  {name}: {value}\n" for name, value in settings.items())
        (tmp_path / "pipeline.yaml").write_text(text)
        (tmp_path / "events").mkdir()
        shutil.copy(DATA / f"{events}.jsonl", tmp_path / "events" / "0001.jsonl")
        done = program("setup")
        assert done.code == 0, done.err
        return program

    return begin


def entries(program: Program) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = program("errors", "list", "--json").json
    return found


def test_a_text_with_a_zero_byte_is_an_error_of_its_transaction(lab: Lab, begin: Begin) -> None:
    program = begin("nul-in-text")

    done = program("run", "--until-caught-up")

    print(done.out, done.err, program("errors", "list").out)
    assert done.code == 5, done.err
