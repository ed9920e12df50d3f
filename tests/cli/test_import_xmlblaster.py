"""`penstock import-xmlblaster`: no property is dropped in silence, and no secret is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from penstock.cli.main import app
from penstock.errors import ConfigError, OperatorError, PenstockError
from penstock.pipeline_file import parse
from penstock.xmlblaster.convert import convert
from penstock.xmlblaster.old_file import OldFile
from penstock.xmlblaster.properties import parse_properties
from penstock.xmlblaster.source_half import Options
from tests.xmlblaster.old_files import read

DATA = Path(__file__).parents[1] / "data/xmlblaster"
WATCHER, WRITER = DATA / "watcher.properties", DATA / "writer.properties"
PAGE = (Path(__file__).parents[2] / "docs/from-xmlblaster.md").read_text(encoding="utf-8")

SECRETS = ["c0ns3rv", "1nf0-s3cret", "br0ker-s3cret", "exp0rt-s3cret", "r1ch-s3cret", "1mp0rt-s3cret"]


def penstock(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, ["import-xmlblaster", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_pair_becomes_one_pipeline_that_the_loader_accepts(tmp_path: Path) -> None:
    output = tmp_path / "pipeline.yaml"
    done = penstock(WATCHER, WRITER, "-o", output)

    assert done.exit_code == 0
    settings = read(output.read_text())
    assert settings == {
        "version": 1,
        "name": "shop",
        "connections": {
            "source": {
                "type": "postgres",
                "url": "postgresql://SHOP_APP:${env:SOURCE_PASSWORD}@db1.example.com:5433/shop"
                "?sslmode=verify-full&application_name=dbwatcher",
            },
            "target": {
                "type": "postgres",
                "url": "postgresql://branch:${env:TARGET_PASSWORD}@zurich.example.com/branch",
            },
        },
        "capture": {
            "source": "trigger_queue",
            "connection": "source",
            "tables": [
                "sales.customers",
                "sales.orders",
                "sales.order_lines",
                "sales.audit",
                "stock.*",
                "public.settings",
            ],
        },
        "rules": {
            "exclude": [
                f"stock.{name}"
                for name in (
                    "shop_items",
                    "shop_tables",
                    "shop_current_tables",
                    "shop_cols_table",
                    "shop_debug_table",
                    "shop_longs_table",
                    "dbinfo",
                )
            ],
            "tables": {
                "sales.orders": {"rename": {"note": "remark"}, "to": "branch.bookings"},
                "sales.customers": {"drop": ["ssn"], "rename": {"name": "full_name"}, "to": "branch.customers"},
                "sales.audit": {"operations": ["insert"], "to": "branch.audit"},
                "sales.settings": {"to": "branch.parameters"},
                "*.settings": {"to": "*.parameters"},
                "sales.*": {"to": "branch.*"},
            },
        },
        "apply": {
            "connection": "target",
            "ddl": "apply",
            "tables": {"branch.order_lines": {"key": ["order_id", "line_no"]}},
        },
    }
    passwords = {"SOURCE_PASSWORD": "a@b", "TARGET_PASSWORD": "c"}
    config = parse(output.read_text(), name="pipeline.yaml", environment=passwords)
    assert config.connections["source"].url.startswith("postgresql://SHOP_APP:a%40b@")


def test_no_secret_leaves_the_old_files(tmp_path: Path) -> None:
    for arguments in ([WATCHER, WRITER], [WATCHER], [WRITER], [WATCHER, "--documented"]):
        output = tmp_path / f"{len(list(tmp_path.iterdir()))}.yaml"
        try:
            done = penstock(*arguments, "-o", output)
            said = done.output
        except PenstockError as exc:
            said = str(exc)
        said += output.read_text()
        assert [secret for secret in SECRETS if secret in said] == []


def test_every_property_is_written_explained_or_called_not_understood() -> None:
    files = [OldFile(path.read_bytes(), path.name) for path in (WATCHER, WRITER)]
    draft = convert(files, Options())

    for file, path in zip(files, (WATCHER, WRITER), strict=True):
        told = [*draft.written[file.name], *draft.remarks[file.name], *draft.unknown.get(file.name, [])]
        assert sorted(told) == sorted(parse_properties(path.read_bytes(), "").values)
    assert draft.unknown == {"watcher.properties": ["replication.branchOffice"]}
    text = draft.text("heading")
    assert all(key in text for below in draft.remarks.values() for key in below)
    assert "# - table.SALES.COUNTRIES: it has no actions" in text


def test_a_summary_says_what_to_look_at_and_what_to_set(tmp_path: Path) -> None:
    said = penstock(WATCHER, WRITER, "-o", tmp_path / "p.yaml").stderr

    assert f"{WATCHER}: 41 properties; 10 written, 30 without a counterpart, 1 not understood" in said
    assert "not understood: replication.branchOffice" in said
    assert "check: replication.prefix is used as SHOP_" in said
    assert "set SOURCE_PASSWORD: db.password of" in said


@pytest.mark.parametrize(
    ("path", "options", "capture", "publish"),
    [
        (
            WATCHER,
            Options(documented=True),
            {"documented": {"prefix": "SHOP_", "version": "1.4"}},
            {"to": "files", "path": "messages"},
        ),
        (
            WATCHER,
            Options(kafka="k:9092"),
            {"source": "trigger_queue"},
            {"to": "kafka", "connection": "messages", "topic": "replication.shop"},
        ),
        (WRITER, Options(), {"source": "dbwatcher", "path": "messages", "tables": ["*.*"]}, None),
        (WRITER, Options(kafka="k:9092"), {"source": "dbwatcher", "connection": "messages"}, None),
    ],
    ids=["watcher to files", "watcher to Kafka", "writer from files", "writer from Kafka"],
)
def test_one_file_becomes_one_half_of_a_pipeline(
    path: Path, options: Options, capture: dict[str, Any], publish: dict[str, Any] | None
) -> None:
    settings = read(convert([OldFile(path.read_bytes(), "old")], options).text("heading"))

    assert settings["capture"].items() >= capture.items()
    published = settings.get("publish")
    if publish is not None:
        messages = {"version": "1.4", "max_rows": 2000, "send_unchanged_updates": False, "content_rows": 500}
        messages |= {"compress_size": 10000} if options.kafka else {}
        publish = {**publish, "format": "dbwatcher", "dbwatcher": messages}
    assert published == publish
    assert ("apply" in settings) == (publish is None)
    if options.kafka:
        assert settings["connections"]["messages"] == {"type": "kafka", "settings": {"bootstrap.servers": "k:9092"}}
    environment = {"SOURCE_PASSWORD": "a", "TARGET_PASSWORD": "b"}
    parse(yaml.safe_dump(settings), name="p", environment=environment)


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        penstock(WATCHER, "-o", tmp_path / "p.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        penstock(tmp_path / "missing.properties")
    with pytest.raises(OperatorError, match="cannot write"):
        penstock(WATCHER, WRITER, "-o", tmp_path / "missing/p.yaml")
    with pytest.raises(ConfigError, match="3 files"):
        penstock(WATCHER, WRITER, WRITER)
    assert (tmp_path / "p.yaml").read_text() == "mine"
