"""`penstock import-xmlblaster`: no property is dropped in silence, and no secret is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from penstock.cli.main import app
from penstock.errors import ConfigError, PenstockError
from penstock.pipeline_file import parse
from penstock.xmlblaster.convert import convert
from penstock.xmlblaster.draft import Draft
from penstock.xmlblaster.jdbc import database_of
from penstock.xmlblaster.old_file import OldFile
from penstock.xmlblaster.properties import parse_properties
from penstock.xmlblaster.source_half import Options
from penstock.xmlblaster.tables import cleaned_prefix

DATA = Path(__file__).parents[1] / "data/xmlblaster"
WATCHER, WRITER = DATA / "watcher.properties", DATA / "writer.properties"
PAGE = (Path(__file__).parents[2] / "docs/from-xmlblaster.md").read_text(encoding="utf-8")

SECRETS = ["c0ns3rv", "1nf0-s3cret", "br0ker-s3cret", "exp0rt-s3cret", "r1ch-s3cret", "1mp0rt-s3cret"]


def penstock(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, ["import-xmlblaster", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def draft_of(*texts: str, options: Options | None = None) -> Draft:
    files = [OldFile(text.encode(), f"{number}.properties") for number, text in enumerate(texts, start=1)]
    return convert(files, options or Options())


def read(text: str) -> Any:
    return yaml.safe_load(text)


def watcher(*lines: str) -> str:
    return "\n".join(["db.url=jdbc:postgresql://h/d", "table.s.t=", *lines])


def writer(*lines: str) -> str:
    return "\n".join(
        [
            "db.url=jdbc:postgresql://h/d",
            "dbWriter.writer.class=org.xmlBlaster.contrib.replication.ReplicationWriter",
            *lines,
        ]
    )


@pytest.mark.parametrize(
    ("content", "values"),
    [
        pytest.param("a=1\nb:2\nc 3\nd\t=\t4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}, id="separators"),
        pytest.param("a = = 1", {"a": "= 1"}, id="only one sign separates"),
        pytest.param("a  :  1 ", {"a": "1 "}, id="white space behind a value is part of it"),
        pytest.param("# c\n  ! c \\\na=1", {"a": "1"}, id="a comment does not go on"),
        pytest.param("a=1,\\\n   2,\\\r\n\t3", {"a": "1,2,3"}, id="continued, without the white space in front"),
        pytest.param("a=1\\\n# 2", {"a": "1# 2"}, id="no comment in a continued line"),
        pytest.param("a=1\\\n\nb=2", {"a": "1", "b": "2"}, id="continued by an empty line"),
        pytest.param("a=c:\\\\temp\\\\\nb=2", {"a": "c:\\temp\\", "b": "2"}, id="an even number of backslashes ends"),
        pytest.param("a=1\\", {"a": "1"}, id="a backslash at the end of the file"),
        pytest.param("a\\ b\\:c\\=d=1", {"a b:c=d": "1"}, id="separators inside a key"),
        pytest.param("a=\\t\\n\\q\\#", {"a": "\t\nq#"}, id="escapes"),
        pytest.param("a=M\\u00fcller\\uD83D\\uDE00", {"a": "Müller😀"}, id="unicode"),
        pytest.param("a=1\nb=2\na=3", {"a": "3", "b": "2"}, id="the last value of a key counts"),
        pytest.param("a\nb=\n= c\r d", {"a": "", "b": "", "": "c", "d": ""}, id="nothing, and a carriage return"),
        pytest.param("\f\n   \n\\\n\n#c\n", {}, id="nothing at all"),
    ],
)
def test_properties_are_read_as_java_reads_them(content: str, values: dict[str, str]) -> None:
    assert parse_properties(content.encode(), "f").values == values


def test_text_is_utf_8_or_else_iso_8859_1() -> None:
    for content in ("a=Müller".encode("iso-8859-1"), "a=Müller".encode(), b"\xef\xbb\xbf" + "a=Müller".encode()):
        assert parse_properties(content, "f").values == {"a": "Müller"}
    assert parse_properties(b"a=1\nb=2\na=1", "f").repeated == ("a",)


@pytest.mark.parametrize("content", ["a=1\nb=\\u12", "a=1\nb=\\uD83D", "a=1\nb=\\uDE00\\uD83D"])
def test_an_escape_that_is_none_is_named_by_its_line(content: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_properties(content.encode(), "old")
    assert refused.value.where == "old:2"


@pytest.mark.parametrize(
    ("jdbc", "url"),
    [
        ("jdbc:postgresql:shop", "postgresql://u:${env:P}@localhost:5432/shop"),
        ("jdbc:postgresql:/", "postgresql://u:${env:P}@localhost:5432/u"),
        ("jdbc:postgresql://h/", "postgresql://u:${env:P}@h/u"),
        ("jdbc:postgresql://h:1,i:2/a%20b", "postgresql://u:${env:P}@h:1,i:2/a%20b"),
        ("jdbc:postgresql://[::1]:5/shop", "postgresql://u:${env:P}@[::1]:5/shop"),
        ("jdbc:postgresql://h/d?user=o/k&password=x", "postgresql://o%2Fk:${env:P}@h/d"),
        ("jdbc:postgresql://h/d?ssl=true", "postgresql://u:${env:P}@h/d?sslmode=verify-full"),
        ("jdbc:postgresql://h/d?ssl&sslmode=require", "postgresql://u:${env:P}@h/d?sslmode=require"),
        ("jdbc:postgresql://h/d?ApplicationName=a+b", "postgresql://u:${env:P}@h/d?application_name=a%20b"),
        ("jdbc:postgresql://h,i/d?targetServerType=primary", "postgresql://u:${env:P}@h,i/d?target_session_attrs=read-write"),
        ("jdbc:postgresql://h/${x}", "postgresql://u:${env:P}@h/%24%7Bx%7D"),
    ],
)  # fmt: skip
def test_a_jdbc_url_becomes_that_of_libpq(jdbc: str, url: str) -> None:
    assert database_of(jdbc, "u", has_password=True, variable="P", where="f").url == url


def test_options_that_libpq_does_not_have_are_named_without_their_values() -> None:
    found = database_of(
        "jdbc:postgresql://h/d?sslpassword=s3cret&prepareThreshold=7&currentSchema=sales,x&sslkey=a.pk8",
        "",
        has_password=True,
        variable="P",
        where="f",
    )
    assert (found.url, found.schema, found.variables) == ("postgresql://h/d?sslkey=a.pk8", "sales", [])
    assert set(found.remarks) == {"sslpassword", "prepareThreshold", "sslkey"}
    assert "s3cret" not in str(found.remarks)


def test_prefixes_are_cleaned_as_xmlblaster_does() -> None:
    assert cleaned_prefix("/a\\b c.d:e[f]g-") == "ab_c_d_e_f_g_"


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
    assert "# - table.SALES.COUNTRIES has no actions" in text


def test_a_summary_says_what_to_look_at_and_what_to_set(tmp_path: Path) -> None:
    said = penstock(WATCHER, WRITER, "-o", tmp_path / "p.yaml").stderr

    assert f"{WATCHER}: 41 properties; 11 written, 29 without a counterpart, 1 not understood" in said
    assert "not understood: replication.branchOffice" in said
    assert "check: replication.prefix is used as SHOP_" in said
    assert "set SOURCE_PASSWORD: db.password of" in said


def without_messages(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with change files in place of messages, for a loader that does not know these yet."""
    capture = {name: value for name, value in settings["capture"].items() if name != "documented"}
    if capture["source"] == "dbwatcher":
        capture["source"] = "change_files"
    publish = {"to": "files", "path": "messages"} if "publish" in settings else None
    return {**settings, "capture": capture} | ({"publish": publish} if publish else {})


@pytest.mark.parametrize(
    ("path", "options", "capture", "publish"),
    [
        (WATCHER, Options(documented=True), {"documented": {"prefix": "SHOP_"}}, {"to": "files", "path": "messages"}),
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
    assert settings.get("publish") == (None if publish is None else {**publish, "format": "dbwatcher"})
    assert ("apply" in settings) == (publish is None)
    if options.kafka:
        assert settings["connections"]["messages"] == {"type": "kafka", "settings": {"bootstrap.servers": "k:9092"}}
    else:
        environment = {"SOURCE_PASSWORD": "a", "TARGET_PASSWORD": "b"}
        parse(yaml.safe_dump(without_messages(settings)), name="p", environment=environment)
