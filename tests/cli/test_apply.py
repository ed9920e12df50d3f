"""`penstock apply`: parameters seen and set; tests/stories/test_parameters.py shows what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import ConfigError, OperatorError
from tests.lab import FILE, Lab


@pytest.mark.rule("A-192")
def test_parameters_are_shown_and_set(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE.format(name=lab.name, tables=["public.*"], row_triggers=[]))
    monkeypatch.setenv("SHOP_URL", lab.source_url)
    monkeypatch.setenv("COPY_URL", lab.target_url)
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.pipeline().setup()

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["apply", *arguments, "-f", str(file)])
        if done.exception is not None:
            raise done.exception
        return done.stdout

    assert run("set", "PARALLELISM", "3") == "parallelism is 3\n"
    assert json.loads(run("set", "trace_level", "1", "--json")) == {"name": "trace_level", "value": "1", "from": "set"}
    assert run("set", "ignore_transaction", "77") == "ignore_transaction is 77\n"
    shown = {row["name"]: (row["value"], row["from"]) for row in json.loads(run("show", "--json"))}
    assert (shown["parallelism"], shown["maximum_scn"]) == (("3", "set"), ("INFINITE", "file"))
    assert "parallelism\t3\tset\n" in run("show")
    assert run("set", "parallelism") == "parallelism is 2, as the pipeline file says\n"
    with pytest.raises(ConfigError, match="did you mean 'parallelism'"):
        run("set", "paralelism", "3")
    with pytest.raises(OperatorError, match="no run of process 'lab' is at work"):
        run("stop")
