"""Every fenced block of the documentation is run, read or checked by its language; those that cannot are marked.

What is run: the tutorial (test_first_hour.py), notebooks (test_notebooks.py), Python that needs nothing around it, and
the script for Spark. What is checked: pipeline files and parts of them, JSON, commands (test_docs.py).
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import re
import symtable
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pyspark.sql import SparkSession
from scripts.reference.first_hour import Fence, fences

from tests.lab import Lab

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    (page.relative_to(ROOT).as_posix(), n, one) for page in PAGES for n, one in enumerate(fences(page.read_text()))
]
# What these hold is checked by tests of their own, or is for people: output, units, manifests.
OTHERS = {"text", "sql", "ini", "dockerfile", "xml", "console", "sh", "bash", "promql", "javascript", "html"}


def of(language: str) -> list[Any]:
    return [
        pytest.param(one, id=f"{page}:{n}")
        for page, n, one in BLOCKS
        if one.language == language and ".norun" not in one.more
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
    marked = Counter(page for page, _, one in BLOCKS if ".norun" in one.more)
    assert marked == {"docs/first-hour.md": 1, "docs/notebooks.md": 3, "docs/prepare-roles.md": 1}


def test_no_block_is_of_a_language_that_nothing_looks_at() -> None:
    assert {one.language for _, _, one in BLOCKS} <= OTHERS | {"python", "yaml", "json"}


@pytest.mark.parametrize("block", of("python"))
def test_python_runs_or_names_what_exists(block: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ast.parse(block.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("penstock"):
            module = importlib.import_module(node.module)
            assert [one.name for one in node.names if not hasattr(module, one.name)] == []
    # A script for Spark and a program with databases have tests of their own.
    if free_names(block.body) or re.search(r"SparkSession|penstock\.open|main\(\)", block.body):
        return
    monkeypatch.chdir(tmp_path)
    exec(compile(tree, "block", "exec"), {"__name__": "block"})


def without_required(schema: Any) -> Any:
    """A schema that takes a part of a file: everything in it has to be known and of its type."""
    if isinstance(schema, dict):
        return {key: without_required(value) for key, value in schema.items() if key != "required"}
    return [without_required(one) for one in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml_is_a_pipeline_file_or_a_part_of_one(block: Fence) -> None:
    # Indented, it is a part of `capture`. In YAML 1.1 `on` is a truth, which a pipeline file reads as it is written.
    body = re.sub(r"\bon: ", '"on": ', f"capture:\n{block.body}" if block.body.startswith("  ") else block.body)
    documents = [one for one in yaml.safe_load_all(body) if one is not None]
    schema = json.loads((ROOT / "docs/pipeline.schema.json").read_text())
    for document in documents:
        if "apiVersion" not in document:
            jsonschema.validate(document, schema if "version" in document else without_required(schema))


def test_a_part_of_a_file_with_an_unknown_setting_is_seen() -> None:
    schema = without_required(json.loads((ROOT / "docs/pipeline.schema.json").read_text()))
    jsonschema.validate({"apply": {"ddl": "apply"}}, schema)
    for wrong in ({"apply": {"dll": "apply"}}, {"apply": {"ddl": "perhaps"}}, {"applied": {}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


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
