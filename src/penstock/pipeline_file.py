"""The pipeline file: read, checked whole, every fault reported at once with its line.

Secrets come from outside: `${env:NAME}` and `${file:path}` inside a connection's url stand for the variable's value and
the file's content, without its final line break. One that is the whole url is taken as it is. Any other is one part of
it, whatever characters it holds: it is percent-encoded in a url, and escaped in `key=value` text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from pydantic import ValidationError

from penstock.apply_config import (
    ApplyConfig,
    ApplyTableConfig,
    ConflictConfig,
    DependenciesConfig,
    ErrorRuleConfig,
    ObjectDependencyConfig,
)
from penstock.config import (
    CaptureConfig,
    ConnectionConfig,
    DebeziumConfig,
    KafkaConfig,
    Path_,
    PipelineConfig,
    PublishConfig,
    PublishedEventsConfig,
    RulesConfig,
    SchemaRegistry,
    TableRuleConfig,
    dotted,
    line_of,
)
from penstock.errors import ConfigError
from penstock.handlers_config import OperationHandlersConfig, TransactionHandlersConfig
from penstock.patterns import TablePattern, TableTemplate
from penstock.text import nearest

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


_REFERENCES = re.compile(rf"(?:{_REFERENCE.pattern})+")


_URL = re.compile(r"[a-z]+://")


_QUOTE = re.compile(r"(?<!\\)'")


_KEY_VALUE = re.compile(r"\s*[a-z_]+\s*=")


_MARK = "\0"
"""Stands for a reference where the text around it is looked at."""


_PASSWORD = re.compile(rf"://[^/@]*:(?!{_MARK}+@)[^/@]+@|password\s*=\s*+(?!'?{_MARK})")


_SECRET_SETTING = re.compile(r"password|secret|user\.info|\.pem$", re.IGNORECASE)
"""Settings of Kafka's clients that hold a secret."""


_PLACES: Mapping[str, tuple[Sequence[str], Sequence[str], Mapping[str, str]]] = {
    "files": (
        ("changes", "parquet", "debezium-json", "xds"),
        ("path",),
        {"connection": "files are written to publish.path, through no connection"},
    ),
    "kafka": (
        ("debezium-json", "debezium-avro", "xds"),
        ("connection",),
        {
            "path": "events are published to a cluster, by publish.connection",
            "max_age_s": "events do not wait for others; linger.ms of the connection's settings does a little",
        },
    ),
}
"""By where changes are published: the formats that it may have, what it needs, and what does not go with it."""


_MAY_BE_SECRET = re.compile(r"://|@|password", re.IGNORECASE)


_KINDS_OF_VALUES = frozenset({"str", "int", "float", "bool"})
"""What pydantic adds to a place for each kind that its value may be of."""


@dataclass(frozen=True)
class _Fault:
    """What is wrong, and where."""

    line: int
    text: str


def load(path: Path, environment: Mapping[str, str] = os.environ) -> PipelineConfig:
    """Read a pipeline file.

    Raises:
        ConfigError: It cannot be read or has faults; the message names each with its line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise _faults(str(path), [_Fault(1, "not UTF-8 text")]) from exc
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        raise ConfigError(
            f"cannot read {str(path)!r}: {reason.lower()}", do="name the pipeline file with -f, or write pipeline.yaml"
        ) from exc
    return parse(text, name=str(path), environment=environment, folder=path.parent)


def parse(text: str, *, name: str, environment: Mapping[str, str], folder: Path = Path()) -> PipelineConfig:
    """Check the text of a pipeline file, which lies in `folder`; see `load`."""
    document = _Document()
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = None if root is None else document.read(root, ())
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        raise _faults(name, [_Fault(mark.line + 1 if mark else 1, f"not YAML: {exc.problem}")]) from exc
    except yaml.reader.ReaderError as exc:
        raise _faults(name, [_Fault(text.count("\n", 0, exc.position) + 1, f"not YAML: {exc.reason}")]) from exc
    except RecursionError as exc:
        raise _faults(name, [_Fault(1, "not a pipeline file: it is nested without end")]) from exc
    if not isinstance(data, dict):
        raise _faults(
            name, [_Fault(1, "a pipeline file is a mapping: version, name, connections, capture, apply or publish")]
        )
    faults = document.faults + document.resolve(data, environment, folder) + document.unknown_connections(data)
    faults += document.outputs(data) + document.place(data) + document.only_of_triggers(data) + document.published(data)
    faults += document.names_of_many(data)
    config = None
    try:
        config = PipelineConfig.model_validate(data)
    except ValidationError as exc:
        found = [document.fault(error) for error in exc.errors() if error["loc"] not in document.told]
        # What has no value is no value of each kind that it may be of.
        faults += dict.fromkeys(found)
    if faults or config is None:
        raise _faults(name, faults)
    config.capture.read_from(name, document.line("capture", "source"), folder)
    if config.rules is not None:
        config.rules.read_from(name, document.lines_below("rules"))
    return config.with_folder(folder)


class _Document:
    """The file as data, with the line of everything in it."""

    def __init__(self) -> None:
        self._lines: dict[Path_, int] = {(): 1}
        self.faults: list[_Fault] = []
        # What is wrong with these is said better here than by their types.
        self.told: set[Path_] = set()

    def read(self, node: yaml.Node, path: Path_) -> Any:
        """Turn a node into plain data, noting lines and repeated keys."""
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            result: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = str(key_node.value)
                line = key_node.start_mark.line + 1
                if key in result:
                    self.faults.append(_Fault(line, f"{dotted((*path, key))} is given twice"))
                self._lines[*path, key] = line
                result[key] = self.read(value_node, (*path, key))
            return result
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, i)) for i, item in enumerate(node.value)]
        try:
            return yaml.SafeLoader("").construct_object(node)
        except ValueError as exc:
            # A date, or a number, that cannot be.
            mark = node.start_mark
            raise yaml.constructor.ConstructorError(None, None, "a value that cannot be read", mark) from exc

    def resolve(self, data: Any, environment: Mapping[str, str], folder: Path) -> list[_Fault]:
        """Put secrets in place in connections and schema registries; returns what is missing."""
        faults: list[_Fault] = []
        for part in ("capture", "publish"):
            registry = _at(data, part, "debezium", "registry")
            if registry is not None:
                faults += self._resolve_named((part, "debezium", "registry"), registry, environment, folder)
        connections = data.get("connections") if isinstance(data, dict) else None
        for key, connection in connections.items() if isinstance(connections, dict) else ():
            if isinstance(connection, dict) and connection.get("type") == "kafka":
                faults += self._resolve_settings(("connections", key), connection, environment, folder)
                continue
            if not isinstance(connection, dict) or not isinstance(connection.get("url"), str):
                continue
            path = ("connections", key, "url")
            url = connection["url"]
            if _PASSWORD.search(_REFERENCE.sub(_MARK, url)):
                what = "a password stands in the file; write it as ${env:NAME} or ${file:path}"
                faults.append(_Fault(self._line(path), f"{dotted(path)}: {what}"))
            missing: list[str] = []
            if "${" in _REFERENCE.sub(_MARK, url):
                missing.append("a secret is written as ${env:NAME} or ${file:path}, and ${ begins something else here")
            if not _has_form(url):
                missing.append(
                    "a reference is the whole url, or one part of it: postgresql://user:${env:NAME}@host/database"
                )
            connection["url"] = _with_secrets(url, partial(_secret, environment, folder, missing))
            if not missing and not connection["url"].strip():
                # libpq would take whatever database its own defaults name.
                whole = _REFERENCE.fullmatch(url)
                missing.append(f"{_named(*whole.groups())} is empty" if whole else "is empty")
            faults += [_Fault(self._line(path), f"{dotted(path)}: {what}") for what in missing]
        return faults

    def _resolve_settings(
        self, path: Path_, connection: dict[str, Any], environment: Mapping[str, str], folder: Path
    ) -> list[_Fault]:
        """Put secrets in place in the settings of a Kafka cluster; see `_resolve_named`."""
        settings = _at(connection, "settings")
        return [] if settings is None else self._resolve_named((*path, "settings"), settings, environment, folder)

    def _resolve_named(
        self, path: Path_, settings: dict[str, Any], environment: Mapping[str, str], folder: Path
    ) -> list[_Fault]:
        """Put secrets in place in settings whose names tell which of them hold one.

        Returns what is missing, and what stands in the file though it is a secret.
        """
        faults = []
        for name, value in settings.items():
            if not isinstance(value, str):
                continue
            missing: list[str] = []
            if _SECRET_SETTING.search(name) and not _REFERENCE.search(value):
                missing.append("a secret stands in the file; write it as ${env:NAME} or ${file:path}")
            settings[name] = _REFERENCE.sub(partial(_secret, environment, folder, missing), value)
            place = (*path, name)
            faults += [_Fault(self._line(place), f"{dotted(place)}: {what}") for what in missing]
        return faults

    def fault(self, error: Any) -> _Fault:
        """Say one of pydantic's findings in our words; never repeats a url."""
        # Of what is wrong with a key itself, pydantic says so behind it.
        path: Path_ = tuple(part for part in error["loc"] if part != "[key]")
        if path[:1] == ("connections",) and len(path) > 2:
            # Behind the name of a connection stands its kind, by which it is checked.
            path = path[:2] + path[3:]
        elif path[:2] == ("capture", "changes_of"):
            path = path[:2] + path[3:]
        given = error["input"]
        has_no_value = given is None and error["type"] not in ("missing", "value_error")
        if has_no_value and path[-1] in _KINDS_OF_VALUES:
            path = path[:-1]
        is_secret = "url" in path or "registry" in path or (path[:1] == ("connections",) and len(path) > 3)
        is_plain = isinstance(given, str | int | float | bool) and not is_secret and _may_be_shown(given)
        shown = f", not {given!r}" if is_plain else ""
        match error["type"]:
            case "union_tag_not_found":
                path, what = (*path, "type"), "is missing"
            case "union_tag_invalid":
                path = (*path, "type")
                kind = given.get("type") if isinstance(given, dict) else None
                shown = f", not {kind!r}" if isinstance(kind, str) and _may_be_shown(kind) else ""
                what = f"must be {error['ctx']['expected_tags'].replace(', ', ' or ')}{shown}"
            case _ if has_no_value:
                what = "has no value"
            case "missing":
                what = "is missing"
            case "extra_forbidden":
                what = "is not an option" + _suggestion(path)
            case "literal_error" | "enum":
                what = f"must be {error['ctx']['expected']}{shown}"
            case "value_error":
                what = str(error["ctx"]["error"])
            case "string_pattern_mismatch" if path[-1] in ("prefix", "transaction_topic", "topic"):
                what = f"must be letters, digits, '.', '_' and '-'{shown}"
            case "string_pattern_mismatch" if path[-1] == "tag" or path[:2] == ("capture", "changes_of"):
                what = f"must be letters, digits, '.', '_', ':' and '-'{shown}"
            case "string_pattern_mismatch" if path[-1] in ("procedure", "error", "precommit", "ddl", "message"):
                what = f"must be module:function, or the name of an entry point{shown}"
            case "string_pattern_mismatch" if path[-1] == "step":
                what = f"must be module:function{shown}"
            case "string_pattern_mismatch" if path[-1] == "source":
                what = (
                    "must be 'trigger_queue', 'change_files', 'debezium', 'event_log', 'xds', 'db2_log' or"
                    f" module:name{shown}"
                )
            case "string_pattern_mismatch":
                what = f"must be lower-case letters, digits and underscores, at most 36, beginning with a letter{shown}"
            case _:
                what = error["msg"].replace("Input should be", "must be") + shown
        return _Fault(self._line(path), f"{dotted(path)}: {what}")

    def unknown_connections(self, data: Mapping[str, Any]) -> list[_Fault]:
        """Connections that are named but not given."""
        given = data.get("connections")
        faults = []
        for part in ("capture", "apply", "publish"):
            section, path = data.get(part), (part, "connection")
            if not isinstance(section, dict) or not isinstance(given, dict):
                continue
            name = section.get("connection")
            if isinstance(name, str) and name not in given:
                shown = f" {name!r}" if _may_be_shown(name) else " of this name"
                faults.append(_Fault(self._line(path), f"{dotted(path)}: no connection{shown}{nearest(name, given)}"))
            elif isinstance(name, str) and isinstance(given[name], dict):
                is_cluster = given[name].get("type") == "kafka"
                if part == "publish" and section.get("to") != "kafka":
                    continue
                is_meant = part == "publish" or (part == "capture" and section.get("source") == "debezium")
                if is_cluster != is_meant:
                    what = "a Kafka cluster" if is_cluster else "a database"
                    other = "a Kafka cluster" if is_meant else "a database"
                    faults.append(_Fault(self._line(path), f"{dotted(path)}: {name} is {what}, and must be {other}"))
        return faults

    def outputs(self, data: Any) -> list[_Fault]:
        """Say so unless there is exactly one output."""
        given = [part for part in ("apply", "publish") if data.get(part) is not None]
        if not given:
            return [_Fault(1, "apply, or publish: is missing; one of them says where changes go")]
        if len(given) > 1:
            return [_Fault(self._line(("publish",)), "publish: a pipeline has either apply or publish, not both")]
        return []

    def names_of_many(self, data: Any) -> list[_Fault]:
        """Rules that would give several tables one name."""
        rules = data.get("rules")
        tables = rules.get("tables") if isinstance(rules, dict) else None
        faults = []
        for text, rule in tables.items() if isinstance(tables, dict) else ():
            to = str(rule.get("to")) if isinstance(rule, dict) else ""
            try:
                pattern, template = TablePattern.parse(text), TableTemplate.parse(to)
            except ConfigError:
                # It is told elsewhere, or there is no `to`.
                continue
            for part, plain, pieces in (
                ("schema", pattern.plain_schema, template.schema),
                ("table", pattern.plain_name, template.name),
            ):
                if plain is None and len(pieces) == 1:
                    path = ("rules", "tables", text, "to")
                    what = f"gives all tables that {text!r} matches one {part}; write * where the source's stands"
                    faults.append(_Fault(self._line(path), f"{dotted(path)}: {to!r} {what}"))
                    break
        return faults

    def line(self, *path: str) -> int:
        """The line of a setting."""
        return self._line(path)

    def lines_below(self, part: str) -> Mapping[Path_, int]:
        """The line of everything in a part, by its path in there."""
        return {path[1:]: line for path, line in self._lines.items() if path[:1] == (part,)}

    def place(self, data: Any) -> list[_Fault]:
        """Say what does not go with the kind of source."""
        capture = data.get("capture")
        if not isinstance(capture, dict):
            return []
        match capture.get("source"):
            case "trigger_queue":
                needed, odd = "connection", {"path": "capture.source trigger_queue has no path, but a connection"}
            case "change_files":
                needed = "path"
                odd = {
                    "connection": "change files are read from capture.path, through no connection",
                    "row_triggers": "an archive has no triggers",
                    "changes_of": "an archive holds what its pipeline has captured",
                }
                if data.get("publish") is not None:
                    what = "publish: what comes from change files is published already; it can be applied"
                    return [_Fault(self._line(("publish",)), what)]
            case "db2_log":
                needed = "path"
                odd = {
                    "connection": "buffers of Db2's log are read from capture.path, through no connection",
                    "row_triggers": "buffers of a log have no triggers",
                    "changes_of": "only trigger_queue knows who wrote a change",
                }
                if data.get("publish") is not None:
                    what = "publish: what comes from buffers of a log can be applied, and not be published"
                    return [_Fault(self._line(("publish",)), what)]
            case "debezium":
                if data.get("publish") is not None:
                    what = "publish: what comes from change events is published already; it can be applied"
                    return [_Fault(self._line(("publish",)), what)]
                return self._events(capture)
            case "event_log":
                return self._event_log(data, capture)
            case "xds":
                needed = "path"
                odd = {
                    "connection": "XDS documents are read from capture.path, through no connection",
                    "row_triggers": "documents have no triggers",
                    "changes_of": "only trigger_queue knows who wrote a change",
                }
                if data.get("publish") is not None:
                    what = "publish: XDS documents are published already; they can be applied"
                    return [_Fault(self._line(("publish",)), what)]
                if data.get("rules") is not None:
                    return [_Fault(self._line(("rules",)), "rules: rules do not go with capture.source xds")]
            case str(own) if ":" in own:
                needed = "path"
                odd = {
                    "connection": "a source of your own reads capture.path, through no connection",
                    "row_triggers": "a source of your own has no triggers",
                    "changes_of": "only trigger_queue knows who wrote a change",
                }
                if data.get("publish") is not None:
                    what = "publish: what comes from a source of your own can be applied, but not published"
                    return [_Fault(self._line(("publish",)), what)]
            case _:
                return []
        faults = [
            _Fault(self._line(path := ("capture", name)), f"{dotted(path)}: {why}")
            for name, why in odd.items()
            if capture.get(name) is not None
        ]
        if capture.get(needed) is None:
            faults.append(_Fault(self._line(("capture",)), f"capture.{needed}: is missing"))
        return faults

    def _event_log(self, data: Mapping[str, Any], capture: Mapping[str, Any]) -> list[_Fault]:
        """What does not go with an event log, or is missing."""
        odd: dict[Path_, str] = {
            ("capture", "path"): "an event log is read through a connection",
            ("capture", "row_triggers"): "the triggers of an event log are not Penstock's",
            ("capture", "changes_of"): "capture.event_log.allow_loopback says whose rows are taken",
            ("rules",): "rules do not go with capture.source event_log",
        }
        faults = [
            _Fault(self._line(path), f"{dotted(path)}: {why}")
            for path, why in odd.items()
            if (data if len(path) == 1 else capture).get(str(path[-1])) is not None
        ]
        faults += [
            _Fault(self._line(("capture",)), f"capture.{name}: is missing")
            for name in ("connection", "event_log")
            if capture.get(name) is None
        ]
        publish = data.get("publish")
        if isinstance(publish, dict) and publish.get("format") != "xds":
            what = "publish.format: an event log is published as xds"
            faults.append(_Fault(self._line(("publish",)), what))
        return faults

    def _events(self, capture: Mapping[str, Any]) -> list[_Fault]:
        """What does not go with change events, or is missing."""
        faults = []
        path: Path_
        for name, why in (
            ("row_triggers", "a connector has no triggers"),
            ("changes_of", "only trigger_queue knows who wrote a change"),
        ):
            if capture.get(name) is not None:
                path = ("capture", name)
                faults.append(_Fault(self._line(path), f"{dotted(path)}: {why}"))
        settings = capture.get("debezium")
        named = settings if isinstance(settings, dict) else {}
        if named.get("registry") is not None and capture.get("path") is not None:
            what = "files hold JSON; a registry goes with a Kafka cluster"
            path = ("capture", "debezium", "registry")
            faults.append(_Fault(self._line(path), f"{dotted(path)}: {what}"))
        if (capture.get("connection") is None) == (capture.get("path") is None):
            what = "capture.connection: names the Kafka cluster, or capture.path a folder of files; give one of them"
            faults.append(_Fault(self._line(("capture",)), what))
        elif capture.get("path") is None and named.get("prefix") is None and named.get("topics") is None:
            what = "capture.debezium.prefix: is missing; it is the connector's topic.prefix"
            faults.append(_Fault(self._line(("capture", "debezium")), what))
        return faults

    def only_of_triggers(self, data: Any) -> list[_Fault]:
        """What only a capture by triggers can do: other sources decide on copies themselves, and tell no DDL."""
        capture, apply = _at(data, "capture") or {}, _at(data, "apply") or {}
        if capture.get("source") == "trigger_queue" or not isinstance(apply, dict):
            return []
        faults = []
        path: Path_
        if apply.get("first_copy") is False:
            path = ("apply", "first_copy")
            what = "only a pipeline from trigger_queue can begin with what the target holds"
            faults.append(_Fault(self._line(path), f"{dotted(path)}: {what}"))
        if (_at(apply, "handlers") or {}).get("message") is not None:
            path = ("apply", "handlers", "message")
            what = "only a pipeline from trigger_queue has messages"
            faults.append(_Fault(self._line(path), f"{dotted(path)}: {what}"))
        tables = apply.get("tables")
        by_table = tables.items() if isinstance(tables, dict) else ()
        said: list[tuple[Path_, Any]] = [(("apply", "ddl"), apply.get("ddl"))]
        said += [(("apply", "tables", name, "ddl"), one.get("ddl")) for name, one in by_table if isinstance(one, dict)]
        handlers = apply.get("handlers")
        said += [(("apply", "handlers", "ddl"), handlers.get("ddl"))] if isinstance(handlers, dict) else []
        for path, policy in said:
            if policy not in (None, "ignore"):
                what = "only a pipeline from trigger_queue is told of DDL"
                faults.append(_Fault(self._line(path), f"{dotted(path)}: {what}"))
        return faults

    def published(self, data: Any) -> list[_Fault]:
        """What does not go with the place to publish to, or is missing."""
        publish = data.get("publish")
        if not isinstance(publish, dict):
            return []
        to = str(publish.get("to"))
        if to not in _PLACES:
            return []
        formats, needed, odd = _PLACES[to]
        path: Path_
        faults = [
            _Fault(self._line(path := ("publish", name)), f"{dotted(path)}: {why}")
            for name, why in odd.items()
            if publish.get(name) is not None
        ]
        faults += [
            _Fault(self._line(("publish",)), f"publish.{name}: is missing")
            for name in needed
            if publish.get(name) is None
        ]
        form = publish.get("format")
        tells_events = str(form).startswith("debezium")
        is_xds = form == "xds"
        if (to == "kafka" or tells_events) and not is_xds and publish.get("debezium") is None:
            faults.append(_Fault(self._line(("publish",)), "publish.debezium: is missing"))
        if to == "files" and not tells_events and publish.get("debezium") is not None:
            path = ("publish", "debezium")
            what = f"{dotted(path)}: change files are no change events; publish.format debezium-json writes those"
            faults.append(_Fault(self._line(path), what))
        if to == "kafka" and is_xds and publish.get("debezium") is not None:
            path = ("publish", "debezium")
            faults.append(_Fault(self._line(path), f"{dotted(path)}: XDS documents are no change events"))
        if publish.get("topic") is not None and not (to == "kafka" and is_xds):
            path = ("publish", "topic")
            faults.append(_Fault(self._line(path), f"{dotted(path)}: goes with XDS documents in Kafka"))
        batch_size = (_at(data, "capture", "event_log") or {}).get("batch_size")
        if to == "kafka" and is_xds and batch_size not in (None, 1):
            path = ("capture", "event_log", "batch_size")
            faults.append(_Fault(self._line(path), f"{dotted(path)}: a record of Kafka holds one event"))
        if is_xds and (_at(data, "capture") or {}).get("source") != "event_log":
            path = ("publish", "format")
            faults.append(_Fault(self._line(path), f"{dotted(path)}: xds goes with capture.source event_log"))
        registry, is_avro = _at(publish, "debezium", "registry"), form == "debezium-avro"
        if to == "kafka" and is_avro and registry is None and publish.get("debezium") is not None:
            what = "publish.debezium.registry: is missing; Avro has its schemas there"
            faults.append(_Fault(self._line(("publish", "debezium")), what))
        if registry is not None and not is_avro:
            path = ("publish", "debezium", "registry")
            faults.append(_Fault(self._line(path), f"{dotted(path)}: goes with publish.format debezium-avro"))
        if isinstance(form, str) and form not in formats:
            path = ("publish", "format")
            self.told.add(path)
            named = " or ".join(filter(None, [", ".join(map(repr, formats[:-1])), repr(formats[-1])]))
            what = f"must be {named}{f', not {form!r}' if _may_be_shown(form) else ''}"
            faults.append(_Fault(self._line(path), f"{dotted(path)}: {what}"))
        return faults

    def _line(self, path: Path_) -> int:
        return line_of(self._lines, path)


def _at(data: Any, *path: str) -> dict[str, Any] | None:
    """The mapping at a path; None where there is none."""
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else None


def _has_form(url: str) -> bool:
    """Whether it is known how a secret has to be written at its place in the url."""
    is_whole = _REFERENCE.fullmatch(url) or not _REFERENCE.search(url)
    return bool(is_whole or _URL.match(url) or _KEY_VALUE.match(url))


def _with_secrets(url: str, secret: Callable[[re.Match[str]], str]) -> str:
    """Put secrets in place, each as one part of the url that can end neither itself nor the url."""
    if _REFERENCE.fullmatch(url):
        return _REFERENCE.sub(secret, url)
    if _URL.match(url):
        return _REFERENCE.sub(lambda found: quote(secret(found), safe=""), url)

    def escaped(found: re.Match[str]) -> str:
        text = re.sub(r"([\\'\s])", r"\\\1", _REFERENCE.sub(secret, found.group()))
        before, after = url[: found.start()], url[found.end() :]
        is_quoted = len(_QUOTE.findall(before)) % 2 == 1
        is_whole_value = before.rstrip().endswith("=") and not after[:1].strip() and not is_quoted
        # Of an empty value libpq would take the next option for the value.
        return "''" if is_whole_value and not text else text

    return _REFERENCES.sub(escaped, url)


def _named(kind: str, name: str) -> str:
    return f"environment variable {name}" if kind == "env" else f"file {name!r}"


def _secret(environment: Mapping[str, str], folder: Path, missing: list[str], found: re.Match[str]) -> str:
    """Look a secret up; where it cannot be had, returns nothing and adds the reason to `missing`."""
    kind, name = found.groups()
    what = _named(kind, name)
    try:
        # What of a variable is no UTF-8 comes as half a character, and is refused here.
        content = environment[name].encode() if kind == "env" else (folder / name).read_bytes()
        text = content.decode()
    except KeyError:
        missing.append(f"{what} is not set")
    except UnicodeError:
        missing.append(f"{what} is not UTF-8 text")
    except OSError as exc:
        missing.append(f"cannot read {what}: {(exc.strerror or '').lower()}")
    else:
        if "\0" not in text:
            return text if kind == "env" else re.sub(r"\r?\n\Z", "", text)
        missing.append(f"{what} holds a zero byte, which no connection can be given")
    return ""


def _may_be_shown(value: object) -> bool:
    """Whether a value from the file may stand in a message: an url in the wrong place may hold a password."""
    return not _MAY_BE_SECRET.search(str(value))


def _faults(name: str, faults: list[_Fault]) -> ConfigError:
    lines = [f"{name}:{fault.line}: {fault.text}" for fault in sorted(faults, key=lambda f: f.line)]
    return ConfigError("\n".join(lines))


def _suggestion(path: Path_) -> str:
    known: list[str] = []
    for part in (
        PipelineConfig,
        ConnectionConfig,
        KafkaConfig,
        CaptureConfig,
        DebeziumConfig,
        SchemaRegistry,
        RulesConfig,
        TableRuleConfig,
        ApplyConfig,
        ApplyTableConfig,
        ConflictConfig,
        ErrorRuleConfig,
        OperationHandlersConfig,
        TransactionHandlersConfig,
        DependenciesConfig,
        ObjectDependencyConfig,
        PublishConfig,
        PublishedEventsConfig,
    ):
        known += part.model_fields
    return nearest(str(path[-1]), known)
