"""`examples/monitoring` under a real Prometheus that scrapes a real run."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.lab import Lab
from tests.metrics.test_exposition import everything
from tests.program import Program, await_true

FOLDER = Path(__file__).parents[2] / "examples/monitoring"
RULES = FOLDER / "penstock.rules.yml"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def queries() -> list[str]:
    """Every query of the dashboard, as Grafana sends it."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [one.replace("$__rate_interval", "1m").replace("$pipeline", ".*") for one in found]


def named(query: str) -> set[str]:
    return set(re.findall(r"\bpenstock_\w+", query))


def test_dashboard_and_alerts_name_metrics_that_exist() -> None:
    there = {s.name for family in text_string_to_metric_families(everything().decode()) for s in family.samples}
    alerts = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]

    for query in queries() + alerts:
        assert named(query) or query.startswith("up"), query
        assert named(query) <= there, query
    # What nobody looks at need not be there.
    page = (FOLDER.parents[1] / "docs/monitoring.md").read_text()
    assert {name for name in there if not name.endswith(("_bucket", "_count", "_sum"))} - named(page) == set()


def test_promtool_accepts_the_rules_and_their_cases_pass() -> None:
    for words in (["check", "rules", "penstock.rules.yml"], ["check", "config", "prometheus.yml"]):
        subprocess.run(["promtool", *words], cwd=FOLDER, check=True, capture_output=True)
    subprocess.run(
        ["promtool", "test", "rules", "penstock.rules.test.yml"], cwd=FOLDER, check=True, capture_output=True
    )


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    cases = yaml.safe_load((FOLDER / "penstock.rules.test.yml").read_text())["tests"]
    fired = {one["alertname"] for case in cases for one in case.get("alert_rule_test", ()) if one["exp_alerts"]} | set(
        re.findall(r'alertname="(\w+)"', json.dumps(cases).replace("\\", ""))
    )
    assert fired == alerts


class Prometheus:
    """A server of this test's own that scrapes one address, every second."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)["data"]

    def query(self, text: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=text)["result"]
        return found

    def value(self, text: str) -> float | None:
        found = self.query(text)
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        return {one["labels"]["alertname"] for one in self.ask("alerts")["alerts"] if one["state"] == "firing"}


@contextmanager
def prometheus(folder: Path, scraped: str) -> Iterator[Prometheus]:
    """Prometheus with the example's rules, whose waits are cut to seconds."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [scraped]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    rules = re.sub(r"^(\s+for:) .*$", r"\1 1s", RULES.read_text(), flags=re.M)
    (folder / "penstock.rules.yml").write_text(rules)
    port = free_port()
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(30)


def test_a_real_run_is_scraped_and_alerts_fire_when_it_fails_and_when_it_ends(
    lab: Lab, program: Program, tmp_path: Path
) -> None:
    """Takes half a minute: a run with Spark, and a Prometheus that scrapes it every second."""
    lab.source.execute(
        "CREATE TABLE item (id int PRIMARY KEY, n int); INSERT INTO item SELECT n, 0 FROM generate_series(1, 9) n"
    )
    assert program("setup").code == 0
    port = free_port()
    address = f"127.0.0.1:{port}"
    (tmp_path / "prometheus").mkdir()

    with program.start("run", "--metrics", f":{port}") as run:
        run.await_line("following")
        assert f"metrics at http://{address}/metrics" in run.said
        with prometheus(tmp_path / "prometheus", address) as server:
            await_true(lambda: _answers(server), 30)
            await_true(lambda: server.value("penstock_up") == 1, 60, lambda: run.said)
            assert server.value("penstock_run_copied_rows_total") == 9
            assert server.firing() == set()

            # The first conflicts at the target, the second does not.
            lab.target.execute("UPDATE item SET n = 77 WHERE id = 1")
            for number in (1, 2):
                lab.source.execute("UPDATE item SET n = 5 WHERE id = %s", [number])
            await_true(
                lambda: server.value('penstock_run_changes_total{table="public.item", operation="update"}') == 1, 60
            )
            await_true(lambda: "PenstockErrorQueueGrows" in server.firing(), 60)
            assert server.value('penstock_error_queue_entries{table="public.item", state="failed"}') == 1
            assert server.value('penstock_run_conflicts_total{kind="exists", resolution="queued"}') == 1
            assert (server.value("penstock_changes_total"), server.value("penstock_lag_seconds")) == (1, 0)
            empty = [query for query in queries() if not server.query(query)]
            assert empty == []

            assert run.end() == 0
            await_true(lambda: "PenstockRunDown" in server.firing(), 60)


def _answers(server: Prometheus) -> bool:
    try:
        return bool(server.query("up"))
    except OSError:
        time.sleep(0.1)
        return False
