"""What messages tell people to write is there: commands with their options, and settings of the pipeline file."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import penstock
from penstock.cli.main import app
from tests.test_docs import complaint_of, text

PACKAGE = Path(penstock.__file__).parent
HELD = "X"
"""Stands where a message has a value."""

OF_PG_DUMP = {"--schema-only", "--data-only", "--exclude-table-data", "--large-objects", "--no-comments"}
OF_KAFKA_CONFIGS = {"--bootstrap-server", "--alter", "--entity-type", "--entity-name", "--add-config"}
OF_KAFKA_ACLS = {"--add", "--allow-principal", "--operation", "--group", "--resource-pattern-type"}
ELSEWHERE = OF_PG_DUMP | OF_KAFKA_CONFIGS | OF_KAFKA_ACLS


def messages() -> Iterator[tuple[str, str]]:
    """Every text of the package that a person could be shown: (its place, it)."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # Docstrings.
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            found = written(node)
            if found is not None and id(node) not in said | parts and " " in found:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", found  # type: ignore[attr-defined]


def written(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else HELD for part in node.values)
    return None


def commands(said: str) -> list[list[str]]:
    """The command lines that a text names, but those of which it holds only a part."""
    lines = [shlex.split(line)[1:] for line in re.findall(r"`(penstock [^`]+)`", said)]
    return [words for words in lines if words and words[0] != HELD]


def settings(said: str) -> list[str]:
    """The settings that a text names by their path."""
    return re.findall(r"(?<![\w.*/`'\"-])((?:capture|apply|publish)(?:\.[a-z_]+)+)(?![\w(*-])", said)


@cache
def schema() -> Mapping[str, Any]:
    read: Mapping[str, Any] = json.loads(text("docs/pipeline.schema.json"))
    return read


def is_setting(path: str) -> bool:
    """Whether the pipeline file has a setting."""
    return any(True for _ in below(schema(), path.split(".")))


def below(part: Mapping[str, Any], names: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield what the names lead to, part by part; a part may be one of several."""
    if "$ref" in part:
        yield from below(schema()["$defs"][part["$ref"].rpartition("/")[2]], names)
    for other in (*part.get("anyOf", ()), *part.get("oneOf", ())):
        yield from below(other, names)
    if not names:
        yield part
        return
    first, *rest = names
    if first in part.get("properties", {}):
        yield from below(part["properties"][first], rest)
    if isinstance(part.get("additionalProperties"), dict):
        yield from below(part["additionalProperties"], rest)


@cache
def known_options() -> frozenset[str]:
    def of(part: typer.main.TyperGroup | Any) -> Iterator[str]:
        for parameter in part.params:
            yield from (*parameter.opts, *parameter.secondary_opts)
        for command in getattr(part, "commands", {}).values():
            yield from of(command)

    return frozenset(of(typer.main.get_command(app)))


MESSAGES = list(messages())


def test_every_command_that_a_message_names_exists() -> None:
    """Each is asked for its help, which takes some hundredths of a second."""
    named = {tuple(words): place for place, said in MESSAGES for words in commands(said)}
    assert len(named) > 20
    assert {place: complaint for words, place in named.items() if (complaint := complaint_of(words))} == {}


def test_every_option_that_a_message_names_exists() -> None:
    named = [(place, option) for place, said in MESSAGES for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", said)]
    assert len(named) > 20
    assert [one for one in named if one[1] not in known_options() | ELSEWHERE] == []


def test_every_setting_that_a_message_names_exists() -> None:
    named = [(place, path) for place, said in MESSAGES for path in settings(said)]
    assert len(named) > 20
    assert [one for one in named if not is_setting(one[1])] == []


def test_every_value_that_a_message_names_is_one_of_its_setting() -> None:
    named = [
        (place, path, value)
        for place, said in MESSAGES
        for path, value in re.findall(
            r"\b((?:capture|apply|publish)(?:\.[a-z_]+)+)(?: to|:) ([a-z_]+)(?=[,;.)]|$)", said
        )
        if is_setting(path)
    ]
    assert len(named) > 5
    assert [one for one in named if not may_be(one[1], one[2])] == []


def may_be(path: str, value: str) -> bool:
    """Whether a setting takes a word, if it takes only some."""
    kinds = [part for part in below(schema(), path.split(".")) if "enum" in part or "const" in part]
    return not kinds or any(value in (*part.get("enum", ()), part.get("const")) for part in kinds)


@pytest.mark.parametrize(
    ("path", "is_there"),
    [
        ("apply.on_bad_row", True),
        ("apply.on_bad_rows", False),
        ("capture.debezium.columns", True),
        ("apply.tables.orders.triggers", True),
        ("capture.debezium.colour", False),
    ],
)
def test_a_setting_that_does_not_exist_is_seen(path: str, *, is_there: bool) -> None:
    assert is_setting(path) == is_there


def test_commands_options_and_settings_are_found_in_messages() -> None:
    said = "run `penstock errors retry X` or `penstock X --print-sql`; set apply.on_bad_row to put_aside"
    assert commands(said) == [["errors", "retry", "X"]]
    assert settings(f"{said}, apply/x.py, penstock.apply.task and `apply.committed`") == ["apply.on_bad_row"]
    assert {"--adopt", "--wait", "--json"} <= known_options()
