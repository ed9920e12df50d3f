"""The sample in examples/db2 is as its script writes it, and the page shows what it holds."""

from __future__ import annotations

from pathlib import Path

from scripts.reference.first_hour import fences
from typer.testing import CliRunner

from penstock.cli.main import app
from tests.sources.db2.sample import FOLDER, files


def test_the_sample_is_as_its_script_writes_it() -> None:
    assert {path.name: path.read_bytes() for path in FOLDER.iterdir()} == files()


def test_the_sample_decodes_as_its_page_shows() -> None:
    page = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    (shown,) = [one.body for one in fences(page) if one.language == "text"]
    (catalog,) = [one.body for one in fences(page) if one.language == "json"]
    names = [str(FOLDER / "catalog.json"), str(FOLDER / "000000001.db2log")]

    done = CliRunner().invoke(app, ["decode", "db2-log", "--catalog", *names])

    assert done.exit_code == 0
    assert done.output == shown
    assert catalog == Path(names[0]).read_text(encoding="utf-8")
