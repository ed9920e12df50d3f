"""docs/settings.md: every setting of a pipeline file with its type and default, from the JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.config.pipeline import json_schema

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/settings.md"
# What stands for the name that a mapping gives each of its values.
NAMED = {"connections": "<c>", "rules.tables": "<p>", "apply.tables": "<t>"}

HEAD = """\
# Every setting by its type

What each setting of a [pipeline file](pipeline-file.md) may hold, and what it is without being given. The page of the
pipeline file says what the settings are for. An editor that knows JSON Schema completes and checks them, with this as
the first line of the file:

```yaml
# yaml-language-server: $schema=pipeline.schema.json
```

`scripts/write-reference` makes this page from [pipeline.schema.json](pipeline.schema.json).
"""


@dataclass(frozen=True)
class Setting:
    """One setting: its path, what it may hold, its default, and what it is for."""

    path: str
    holds: str
    default: str
    what: str


def page() -> str:
    """The text of the page."""
    schema = json.loads(json_schema())
    parts: dict[str, dict[str, Setting]] = {}
    for one in settings(schema, schema["$defs"]):
        part = parts.setdefault(_part(one.path), {})
        # One path for several kinds of connections.
        before = part.get(one.path)
        part[one.path] = one if before is None else replace(one, holds=f"{before.holds} or {one.holds}")
    lines = [HEAD]
    for name, part in parts.items():
        heading = f"`{name}`" if name else "The file"
        lines += [f"## {heading}", "", "| setting | holds | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [f"| `{one.path}` | {one.holds} | {one.default} | {one.what} |" for one in part.values()]
        lines.append("")
    return "\n".join(lines)


def settings(schema: Mapping[str, Any], defs: Mapping[str, Any], prefix: str = "") -> Iterator[Setting]:
    """Every setting below a part of the schema that holds no further ones, in the file's order."""
    for part in _parts(schema, defs):
        for name, option in part.get("properties", {}).items():
            path = f"{prefix}{name}"
            listed = f"{NAMED[path]}." if path in NAMED else ""
            below = list(settings(option, defs, f"{path}.{listed}"))
            default = "" if option.get("default") is None or below else _value(option["default"])
            kinds = [kind for kind in dict.fromkeys(_kinds(option, defs)) if kind != "null"]
            own = [kind for kind in kinds if kind != "settings"]
            if own or not below:
                yield Setting(path, " or ".join(own or kinds), default, _cell(option.get("description") or ""))
            yield from below


def _part(path: str) -> str:
    """The heading of a setting: the first part of its path, and the second where that has many settings."""
    first, _, rest = path.partition(".")
    second = rest.partition(".")[0]
    split = {"capture": {"debezium", "event_log", "dbwatcher", "documented"}, "publish": {"debezium", "dbwatcher"}}
    split["apply"] = {"tables", "handlers", "dependencies"}
    if second in split.get(first, ()):
        return f"{first}.{second}"
    return first if rest or first == "spark" else ""


def _parts(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of the schema that have settings: itself, what it refers to, and what it lists."""
    if "$ref" in schema:
        yield from _parts(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "properties" in schema:
        yield schema
    for key in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(key, ()):
            yield from _parts(one, defs)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _parts(schema[key], defs)


def _kinds(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Iterator[str]:
    """What a setting may hold, in words."""
    if "$ref" in schema:
        yield from _kinds(defs[schema["$ref"].rpartition("/")[2]], defs)
    elif "enum" in schema or "const" in schema:
        yield from (_value(value) for value in schema.get("enum", [schema.get("const")]))
    elif "anyOf" in schema or "oneOf" in schema:
        for one in schema.get("anyOf") or schema["oneOf"]:
            yield from _kinds(one, defs)
    elif schema.get("type") == "array":
        items = [kind for kind in dict.fromkeys(_kinds(schema.get("items", {}), defs)) if kind != "null"]
        yield f"list of {' or '.join(items) if items else 'values'}"
    elif schema.get("type") == "object":
        values = schema.get("additionalProperties")
        is_map = isinstance(values, dict) and "properties" not in schema
        yield "settings" if not is_map or list(_parts(values, defs)) else "names with values"
    elif "type" in schema:
        yield _bounded(schema)


def _bounded(schema: Mapping[str, Any]) -> str:
    """A plain type with its bounds."""
    word = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`"}
    text = word.get(schema["type"], str(schema["type"]))
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if schema["type"] == "integer" and "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - 1
    if low is not None and high is not None:
        return f"{text}, {low} to {high}"
    return f"{text}, {low} or more" if low is not None else f"{text}, {high} at most" if high is not None else text


def _value(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value or '(empty)'}`"


def _cell(text: str) -> str:
    return re.sub(r"([*<])", r"\\\1", " ".join(text.split()).replace("|", "\\|"))
