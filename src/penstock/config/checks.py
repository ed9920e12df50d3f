"""What the types of a pipeline file's parts cannot say: which settings go together, across parts."""

from __future__ import annotations

from penstock.config.capture import SOURCES, check_capture, kind_of_source
from penstock.config.document import Document, Fault, must_be_redacted
from penstock.config.publish import check_publish
from penstock.errors import ConfigError
from penstock.patterns import TablePattern, TableTemplate
from penstock.sources.trigger_queue.config import check_others
from penstock.text import nearest


def check(document: Document) -> list[Fault]:
    """Find the settings that do not go together, and those that others need."""
    return [
        *_check_connections(document),
        *_check_outputs(document),
        *check_capture(document),
        *check_others(document, [source.name for source in SOURCES if source.tells_ddl]),
        *check_publish(document),
        *_check_names_of_tables(document),
    ]


def _check_connections(document: Document) -> list[Fault]:
    """Find connections that are named but not given, or of the wrong kind."""
    given = document.value("connections")
    if not isinstance(given, dict):
        return []
    faults = []
    for part in ("capture", "apply", "publish"):
        name, path = document.value(part, "connection"), (part, "connection")
        if not isinstance(name, str):
            continue
        if name not in given:
            shown = " of this name" if must_be_redacted(name) else f" {name!r}"
            faults.append(document.fault(path, f"no connection{shown}{nearest(name, given)}"))
        elif isinstance(given[name], dict):
            is_cluster, is_meant = given[name].get("type") == "kafka", _wants_kafka(document, part)
            if is_meant is not None and is_cluster != is_meant:
                kinds = {True: "a Kafka cluster", False: "a database"}
                faults.append(document.fault(path, f"{name} is {kinds[is_cluster]}, and must be {kinds[is_meant]}"))
    return faults


def _wants_kafka(document: Document, part: str) -> bool | None:
    """Whether the connection of a part has to be a Kafka cluster; None where the part has none."""
    if part == "publish":
        return True if document.value("publish", "to") == "kafka" else None
    kind = kind_of_source(document.value("capture", "source"))
    return part == "capture" and kind is not None and kind.connects_to == "cluster"


def _check_outputs(document: Document) -> list[Fault]:
    """Say so unless there is exactly one output."""
    given = [part for part in ("apply", "publish") if document.value(part) is not None]
    if not given:
        return [Fault(1, "apply, or publish: is missing; one of them says where changes go")]
    if len(given) > 1:
        return [document.fault(("publish",), "a pipeline has either apply or publish, not both")]
    return []


def _check_names_of_tables(document: Document) -> list[Fault]:
    """Find rules that would give several tables one name."""
    faults = []
    for text, rule in document.mapping("rules", "tables").items():
        to = str(rule.get("to")) if isinstance(rule, dict) else ""
        try:
            pattern, template = TablePattern.parse(text), TableTemplate.parse(to)
        except ConfigError:
            # Their types say so, or there is no `to`.
            continue
        for part, plain, pieces in (
            ("schema", pattern.plain_schema, template.schema),
            ("table", pattern.plain_name, template.name),
        ):
            if plain is None and len(pieces) == 1:
                what = f"gives all tables that {text!r} matches one {part}; write * where the source's stands"
                faults.append(document.fault(("rules", "tables", text, "to"), f"{to!r} {what}"))
                break
    return faults
