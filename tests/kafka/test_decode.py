"""`penstock decode debezium` reads topics as they lie there, and leaves no trace."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import OperatorError
from tests.kafka.broker import KafkaBroker
from tests.kafka.events import end, event, record


def test_topics_are_read_from_offset_to_offset(kafka: KafkaBroker, tmp_path: Path) -> None:
    events, _ = kafka.topic("decoded.public.t"), kafka.topic("decoded.transaction")
    for n in range(5):
        lines = [event("c", "t", {"id": n}, n + 1, 1, prefix="decoded"), end(n + 1, prefix="decoded", t=1)]
        kafka.produce(map(record, lines))
    kafka.delete_records(events, 1)
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"""
version: 1
name: decoded
connections:
  events: {{type: kafka, settings: {{bootstrap.servers: "{kafka.address}"}}}}
  target: {{type: postgres, url: "postgresql://nowhere/x"}}
capture: {{source: debezium, connection: events, tables: ["public.*"], debezium: {{prefix: decoded}}}}
apply: {{connection: target}}
""")

    def decoded(*arguments: str) -> tuple[list[tuple[str, int]], str]:
        done = CliRunner().invoke(app, ["decode", "debezium", "--json", *arguments], catch_exceptions=False)
        assert done.exit_code == 0
        changes = [json.loads(line) for line in done.stdout.splitlines()]
        return [(one["key"]["id"], one["commit_scn"]) for one in changes], done.stderr

    everything, notes = decoded("decoded.*", "--bootstrap", kafka.address)
    assert everything == [("1", 2), ("2", 3), ("3", 4), ("4", 5)]
    assert notes == "note: transaction 1 is incomplete: public.t 0 of 1\n"
    assert decoded("-f", str(file)) == (everything, notes)
    assert decoded("-f", str(file), "--from", "2", "--to", "4") == ([("2", 3), ("3", 4)], "")
    assert decoded("-f", str(file), "--from", "-1") == ([("4", 5)], "")
    alone, notes = decoded(events, "--bootstrap", kafka.address, "--limit", "2")
    assert [id_ for id_, _ in alone] == ["1", "2"]
    assert f"topic {events}, partition 0 was read up to offset 3, as --limit says" in notes
    with pytest.raises(OperatorError, match="there is no topic 'nothing'"):
        decoded("nothing", "--bootstrap", kafka.address)
