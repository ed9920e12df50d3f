"""Every fenced block of the documentation is run or read as its language says; what cannot be run says why.

Here: Python, pipeline files and parts of them, JSON, XML. Elsewhere: the tutorial and the page of symptoms
(test_first_hour.py), other commands and SQL (test_shell_blocks.py), notebooks (test_notebooks.py), the reader of change
files and the source that pages show (test_docs.py).
"""

from __future__ import annotations

import builtins
import json
import re
import shutil
import symtable
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession
from scripts.reference.first_hour import Fence, fences

from penstock.errors import ConfigError
from penstock.formats.dbwatcher.changes import changes_of
from penstock.formats.dbwatcher.reader import read_message
from penstock.formats.xds.reader import read_document
from penstock.pipeline_file import parse
from penstock.storage import LocalStorage
from tests.archives import publish
from tests.lab import Lab

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    (page.relative_to(ROOT).as_posix(), n, one) for page in PAGES for n, one in enumerate(fences(page.read_text()))
]
RUN = {"python", "yaml", "json", "xml", "sql", "sh"}
# What commands print, and what is in no language.
FOR_PEOPLE = {"text"}
# Why a block is not run, and how many are not for this reason.
NOT_RUN = {
    "asks": 1,
    "installs": 2,
    "is a line of a crontab": 1,
    "is a part of a program": 5,
    "is a test": 1,
    "needs Db2": 2,
    "needs a Spark cluster": 2,
    "needs a broker": 3,
    "needs another machine": 1,
    "needs another product": 2,
    "needs containers": 4,
    "needs root": 1,
    "runs until it is stopped": 5,
    "takes minutes": 2,
}


def of(language: str) -> list[Any]:
    return [
        pytest.param(one, id=f"{page}:{n}") for page, n, one in BLOCKS if one.language == language and not one.not_run
    ]


def free_names(code: str) -> set[str]:
    """Names that a block uses and that nothing in it defines."""
    top = symtable.symtable(code, "block", "exec")
    tables, free = [top], set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for name in table.get_symbols():
            if name.is_global() or (table is top and not name.is_assigned() and not name.is_imported()):
                free.add(name.get_name())
    defined = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
    defined |= {one.get_name() for one in top.get_children()}
    return {name for name in free - defined if not hasattr(builtins, name)}


def test_blocks_that_are_not_run_are_marked_and_counted() -> None:
    assert Counter(one.not_run for _, _, one in BLOCKS if one.not_run) == NOT_RUN


def test_every_block_has_a_language_that_is_run_or_is_for_people() -> None:
    assert {one.language for _, _, one in BLOCKS} == RUN | FOR_PEOPLE
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(re.findall(r"^ *(?:```|~~~)", text, re.M)) == 2 * len(fences(text)), page


def is_alone(block: Fence) -> bool:
    """Whether nothing has to be around it: no session of Spark, no databases, no command line."""
    return not free_names(block.body) and not re.search(r"SparkSession|penstock\.open|main\(\)", block.body)


@pytest.mark.parametrize("block", [one for one in of("python") if is_alone(one.values[0])])
def test_python_runs(block: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block.body, "block", "exec"), {"__name__": "block"})


def test_python_that_needs_something_around_it_is_run_by_these_tests() -> None:
    found = Counter(page for page, _, one in BLOCKS if one.language == "python" and not (one.not_run or is_alone(one)))
    scripts = {"docs/cluster.md": 1, "docs/spark-stream.md": 1}
    # test_shell_blocks.py runs this one.
    programs = {"docs/python.md": 1}
    assert found == dict.fromkeys(READERS, 1) | scripts | programs


READERS = {
    "docs/change-files.md": "batch",
    "docs/db2.md": "batch",
    "docs/dbwatcher.md": "batch",
    "docs/event-log.md": "stream",
    "docs/postgresql.md": "stream",
}


@pytest.mark.parametrize("page", READERS)
def test_python_reads_changes_in_a_session_of_spark(
    page: str, spark: SparkSession, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [one for name, _, one in BLOCKS if name == page and one.language == "python" and not one.not_run]
    (block,) = [one for one in blocks if "spark" in free_names(one.body)]
    publish(LocalStorage(tmp_path / "archive"))
    shutil.copytree(ROOT / "examples/db2/log", tmp_path / "log")
    (tmp_path / "messages").mkdir()
    (message,) = [one for name, _, one in BLOCKS if name == "docs/dbwatcher.md" and one.language == "xml"]
    (tmp_path / "messages/1.xml").write_text(message.body)
    lab.source.execute(
        "CREATE SCHEMA indirect CREATE TABLE event_log (record_id bigint, table_key text, status text DEFAULT 'N')"
    )
    lab.setup("CREATE TABLE orders (id int PRIMARY KEY)")
    code = re.sub(r'"path", "(\w+)"', rf'"path", "{tmp_path}/\1"', block.body).replace("penstock_shop", lab.set_name)
    names: dict[str, Any] = {"__name__": "block", "spark": spark, "url": lab.source_url}
    monkeypatch.chdir(tmp_path)

    exec(compile(code, "block", "exec"), names)

    (frame,) = [one for one in names.values() if isinstance(one, DataFrame)]
    assert frame.isStreaming == (READERS[page] == "stream")
    assert frame.isStreaming or frame.count()


def test_the_file_for_spark_submit_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [one for page, _, one in BLOCKS if page == "docs/cluster.md" and one.language == "python"]
    monkeypatch.setattr("sys.argv", ["run_penstock.py", "--version"])
    with pytest.raises(SystemExit) as ended:
        exec(block.body, {"__name__": "__main__"})
    assert not ended.value.code


def whole(part: dict[str, Any]) -> dict[str, Any]:
    """A pipeline file with this part in it; what the part does not say is as in the README's file."""
    if "version" in part:
        return part
    given = part.get("capture", {})
    sources = [one for one in ("event_log", "debezium", "dbwatcher") if one in given]
    sources += ["event_log"] if part.get("publish", {}).get("format") == "xds" else []
    capture = {"source": (sources or ["trigger_queue"])[0], "connection": "shop", "tables": ["public.*"]}
    file = {"version": 1, "name": "shop", "capture": given if "source" in given else capture | given}
    if capture["source"] == "event_log":
        file["capture"] |= {"event_log": {"table": "public.log"} | given.get("event_log", {})}
    if "publish" not in part:
        file["apply"] = {"connection": "copy"} | part.get("apply", {})
    file |= {name: section for name, section in part.items() if name not in ("capture", "apply")}
    places = [(file[name], file[name].get("connection")) for name in ("capture", "apply", "publish") if name in file]
    file["connections"] = {name: kind_of(place) for place, name in places if name}
    return file


def kind_of(place: dict[str, Any]) -> dict[str, Any]:
    """A connection for a section of a pipeline file."""
    if "to" in place or place.get("source") in ("debezium", "dbwatcher"):
        return {"type": "kafka", "settings": {"bootstrap.servers": "broker:9092"}}
    return {"type": "postgres", "url": "postgresql://penstock@db.example/shop"}


def read_file(body: str) -> None:
    """Read each pipeline file, or part of one, as `penstock -f` does."""
    # Indented, it is a part of `capture`. In YAML 1.1 `on` is a truth, which a pipeline file reads as it is written.
    body = re.sub(r"\bon: ", '"on": ', f"capture:\n{body}" if body.startswith("  ") else body)
    for document in yaml.safe_load_all(body):
        text = body if "version" in document else yaml.safe_dump(whole(document))
        environment = dict.fromkeys(re.findall(r"\$\{env:(\w+)\}", text), "secret")
        environment |= {name: "postgresql://db.example/shop" for name in environment if name.endswith("_URL")}
        environment |= {name: "https://hook.example" for name in environment if name == "HOOK_URL"}
        parse(text, name="pipeline.yaml", environment=environment)


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml_is_a_pipeline_file_or_a_part_of_one(block: Fence) -> None:
    if block.body.startswith("#") and not re.search(r"^[^#]", block.body, re.M):
        # A comment for editors; it goes before any file.
        block.body += "apply: {ddl: apply}\n"
    read_file(block.body)


@pytest.mark.parametrize("wrong", ["apply: {dll: apply}", "apply: {ddl: perhaps}", "applied: {}", "  tables: 3"])
def test_a_part_of_a_file_with_a_fault_is_seen(wrong: str) -> None:
    read_file("apply: {ddl: apply}")
    with pytest.raises(ConfigError):
        read_file(wrong)


@pytest.mark.parametrize("block", of("xml"))
def test_xml_is_a_message_that_its_reader_takes(block: Fence) -> None:
    if "<nds" in block.body:
        assert read_document(block.body.encode())
    else:
        (part,) = changes_of(read_message(block.body.encode()), {}).parts
        assert part


@pytest.mark.parametrize("block", of("json"))
def test_json_is_json(block: Fence) -> None:
    decoder, rest = json.JSONDecoder(), block.body.strip()
    while rest:
        _, end = decoder.raw_decode(rest)
        rest = rest[end:].strip()


def test_names_that_a_block_lacks_are_seen() -> None:
    assert free_names("import os\nx = 1\ndef f(a):\n    return a + x + y\nprint(os, [z for z in q])") == {"y", "q"}


def test_the_script_for_spark_writes_each_change_with_its_whole_row(
    lab: Lab, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = [one for page, _, one in BLOCKS if page == "docs/spark-stream.md" and one.language == "python"]
    lab.setup("CREATE TABLE orders (id int PRIMARY KEY, price numeric(10, 2), state text)")
    lab.source.execute("INSERT INTO orders VALUES (1, 2.50, 'new'), (2, 3, NULL)")
    lab.source.execute("UPDATE orders SET state = 'paid' WHERE id = 1")
    lab.source.execute("DELETE FROM orders WHERE id = 2")
    monkeypatch.setenv("SHOP_URL", lab.source_url)
    monkeypatch.chdir(tmp_path)
    code = block.body.replace('"penstock_shop"', repr(lab.set_name))
    for folder in ("lake/orders", "lake/checkpoint"):
        code = code.replace(f'"{folder}"', repr(str(tmp_path / folder)))

    exec(code, {"__name__": "script"})

    rows = spark.read.parquet(str(tmp_path / "lake/orders")).orderBy("commit_scn", "change_seq").collect()
    assert [(row["op"], row["id"], str(row["price"]), row["state"]) for row in rows] == [
        ("insert", 1, "2.50", "new"),
        ("insert", 2, "3.00", None),
        ("update", 1, "2.50", "paid"),
        ("delete", 2, "3.00", None),
    ]
