"""Fixtures of what watches over a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import Lab
from tests.program import Program


@pytest.fixture
def program(lab: Lab, tmp_path: Path) -> Program:
    return Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)
