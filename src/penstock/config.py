"""The pipeline file: read, checked whole, every fault reported at once with its line.

Secrets come from outside: `${env:NAME}` and `${file:path}` inside a connection's url stand for the variable's value and
the file's content, without its final line break. One that is the whole url is taken as it is. Any other is one part of
it, whatever characters it holds: it is percent-encoded in a url, and escaped in `key=value` text.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from penstock.apply.process import CommitSerialization
from penstock.beside import NAME
from penstock.errors import ConfigError
from penstock.patterns import TablePattern, TableTemplate
from penstock.storage import check_place
from penstock.text import nearest

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
_REFERENCES = re.compile(rf"(?:{_REFERENCE.pattern})+")
_URL = re.compile(r"[a-z]+://")
_QUOTE = re.compile(r"(?<!\\)'")
_KEY_VALUE = re.compile(r"\s*[a-z_]+\s*=")
_MARK = "\0"
"""Stands for a reference where the text around it is looked at."""

_PASSWORD = re.compile(rf"://[^/@]*:(?!{_MARK}+@)[^/@]+@|password\s*=\s*+(?!'?{_MARK})")
_MAY_BE_SECRET = re.compile(r"://|@|password", re.IGNORECASE)

_PUBLISHING_TASKS = 2

Path_ = tuple[str | int, ...]

_Path = TypeVar("_Path", str, str | None)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _checked(kind: type[TablePattern] | type[TableTemplate], text: str) -> str:
    try:
        kind.parse(text)
    except ConfigError as exc:
        raise ValueError(str(exc)) from exc
    return text


Pattern = Annotated[str, AfterValidator(partial(_checked, TablePattern))]
Template = Annotated[str, AfterValidator(partial(_checked, TableTemplate))]


class ConnectionConfig(_Part):
    """A database."""

    type: Literal["postgres"] = Field(description="Kind of database")
    url: str = Field(description="libpq url or conninfo; secrets only as ${env:NAME} or ${file:path}", repr=False)


class CaptureConfig(_Part):
    """Where changes come from."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"source": {"const": "trigger_queue"}}},
            "then": {"required": ["connection"]},
            "else": {"required": ["path"]},
        }
    )

    source: str = Field(
        pattern=rf"^(trigger_queue|change_files|{NAME})$",
        description="How changes are captured: trigger_queue by triggers, change_files from an archive of another"
        " pipeline's; module:name in Python is a source of your own",
        examples=["trigger_queue", "change_files"],
    )
    connection: str | None = Field(default=None, description="trigger_queue: name of the connection to capture from")
    path: str | None = Field(
        default=None,
        description="change_files: folder of the archive, which may be below that of this file, or an url of an"
        " object store; for a source of your own, the place that it reads",
    )
    tables: list[Pattern] = Field(
        min_length=1, description="Patterns schema.table with * and ?, names as they stand in the catalogue"
    )
    row_triggers: list[Pattern] = Field(
        default_factory=list,
        description="Patterns of those tables that are mostly written one row at a time: row triggers cost such a"
        " statement less, and one that writes many rows more",
    )
    _named_at: str = PrivateAttr(default="capture.source: ")
    _folder: Path = PrivateAttr(default=Path())

    @property
    def is_own(self) -> bool:
        """Whether the source is Python of the user's own, by its name."""
        return ":" in self.source

    @property
    def place(self) -> str:
        """Where the source is named, as messages begin: `file:line: capture.source: `."""
        return self._named_at

    @property
    def folder(self) -> Path:
        """Where the pipeline file lies, and a module with a source beside it."""
        return self._folder

    def read_from(self, file: str, line: int, folder: Path) -> None:
        """Remember where the source is named; for `place`."""
        self._named_at, self._folder = f"{file}:{line}: {self._named_at}", folder

    @property
    def name(self) -> str:
        """What the source is called, in the ledger and in the changes."""
        return self.connection or self.source

    @field_validator("path")
    @classmethod
    def _is_a_place(cls, path: str | None) -> str | None:
        return None if path is None else _place(path)


class ApplyConfig(_Part):
    """Where changes go."""

    connection: str = Field(description="Name of the connection to apply to")
    parallelism: int = Field(
        default=2,
        strict=True,
        ge=1,
        le=64,
        description="Most apply servers at work side by side; how many are used is measured",
    )
    commit_serialization: CommitSerialization = Field(
        default=CommitSerialization.DEPENDENT_TRANSACTIONS,
        description="FULL: all transactions commit in the source's order",
    )
    disable_on_error: bool = Field(
        default=False, description="Stop after the first transaction that goes to the error queue"
    )
    allow_duplicate_rows: bool = Field(
        default=True, description="Where several rows are equal in every column, change one of them"
    )
    retry_s: float = Field(default=60, ge=0, description="Seconds to go on trying while a server is out of reach")


class PublishConfig(_Part):
    """Where changes are published, instead of being applied."""

    to: Literal["files"] = Field(description="files: an archive of change files, which any tool can read")
    path: str = Field(
        description="Folder of the archive, which may be below that of this file, or an url of an object store",
    )
    format: Literal["changes", "parquet"] = Field(
        default="changes", description="Of the data files: changes (JSON lines, compressed) or parquet"
    )
    max_age_s: float = Field(
        default=10, ge=0, le=3600, description="Seconds that changes may wait for others that go into the same file"
    )
    retry_s: float = Field(default=60, ge=0, description="Seconds to go on trying while a place is out of reach")

    @field_validator("path")
    @classmethod
    def _is_a_place(cls, path: str) -> str:
        return _place(path)


class TableRuleConfig(_Part):
    """What becomes of the rows of a table, or of the tables that a pattern matches; in the order of the fields.

    Conditions and computed columns see the row as it is at the source.
    """

    rows: str | None = Field(
        default=None,
        min_length=1,
        description="Condition in SQL for the rows that are at the target. An update that moves a row in or out becomes"
        " an insert or a delete",
    )
    operations: list[Literal["insert", "update", "delete", "truncate"]] | None = Field(
        default=None, min_length=1, description="The changes that reach the target; all of them if absent"
    )
    keep: list[str] | None = Field(default=None, min_length=1, description="The only columns that are kept")
    drop: list[str] = Field(default_factory=list, description="Columns that are left out")
    rename: dict[str, str] = Field(default_factory=dict, description="Columns that are called otherwise at the target")
    add: dict[str, str] = Field(default_factory=dict, description="Further columns, each as an expression in SQL")
    to: Template | None = Field(
        default=None,
        description="What the table is called at the target, schema.table; a * stands for what it is at the source",
    )
    step: str | None = Field(
        default=None,
        pattern=rf"^{NAME}$",
        description="module:function in Python, which takes and returns the rows as an Arrow table of texts",
    )


class RulesConfig(_Part):
    """Which tables are processed, and what becomes of their rows; names are those at the source."""

    include: list[Pattern] | None = Field(
        default=None,
        description="Patterns of the tables to process; all that are captured if absent, none if the list is empty",
    )
    exclude: list[Pattern] = Field(default_factory=list, description="Patterns of the tables that are not processed")
    tables: dict[Pattern, TableRuleConfig] = Field(
        default_factory=dict,
        description="By table or pattern. Each setting is taken from the first that has it: the table's own, then the"
        " patterns in the order of the file",
    )
    _file: str = PrivateAttr(default="")
    _lines: Mapping[Path_, int] = PrivateAttr(default_factory=dict)

    def place(self, *path: str | int) -> str:
        """Where a setting below `rules` stands, as `file:line: rules.path: `; without a file, only the path."""
        named = f"{_dotted(('rules', *path))}: "
        return f"{self._file}:{_line_of(self._lines, path)}: {named}" if self._file else named

    @property
    def folder(self) -> Path:
        """Where the pipeline file lies, and modules with steps beside it."""
        return Path(self._file).parent

    def read_from(self, file: str, lines: Mapping[Path_, int]) -> None:
        """Remember the file, and the line of each setting by its path below `rules`; for `place`."""
        self._file, self._lines = file, lines


class PipelineConfig(_Part):
    """One pipeline."""

    version: Literal[1]
    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]{0,35}$",
        description="Name of the pipeline: lower-case letters, digits and underscores, at most 36, a letter first",
    )
    connections: dict[str, ConnectionConfig] = Field(min_length=1)
    capture: CaptureConfig
    rules: RulesConfig | None = Field(default=None, description="Which tables are processed, and how they are changed")
    apply: ApplyConfig | None = Field(default=None, description="Where changes are applied")
    publish: PublishConfig | None = Field(default=None, description="Instead of apply: where changes are published")
    spark: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="Spark's own settings, spark.*; master stands for spark.master"
    )

    @field_validator("spark")
    @classmethod
    def _are_spark_settings(cls, settings: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        for name in settings:
            if name != "master" and not name.startswith("spark."):
                raise ValueError(f"{name!r} is none of Spark's settings, whose names begin with 'spark.'")
        return settings

    def with_folder(self, folder: Path) -> PipelineConfig:
        """The same pipeline, whose files are kept below a folder unless their path says another place."""
        capture, publish = self.capture, self.publish
        if capture.path is not None:
            capture = capture.model_copy(update={"path": _below(folder, capture.path)})
        if publish is not None:
            publish = publish.model_copy(update={"path": _below(folder, publish.path)})
        return self.model_copy(update={"capture": capture, "publish": publish})

    def with_master(self, master: str) -> PipelineConfig:
        """The same pipeline with another master of Spark's."""
        others = {name: value for name, value in self.spark.items() if name not in ("master", "spark.master")}
        return self.model_copy(update={"spark": {**others, "master": master}})

    @property
    def parallelism(self) -> int:
        """How many tasks may be at work side by side."""
        return _PUBLISHING_TASKS if self.apply is None else self.apply.parallelism

    @property
    def application_name(self) -> str:
        """What Spark calls a run."""
        return f"penstock {self.name}"

    @property
    def spark_settings(self) -> Mapping[str, str]:
        """Spark's settings, as Spark names and writes them."""
        names = {"master": "spark.master"}
        return {
            names.get(name, name): str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.spark.items()
        }


def _place(path: str) -> str:
    if not path.strip():
        raise ValueError("is empty")
    try:
        check_place(path)
    except ConfigError as exc:
        raise ValueError(str(exc)) from exc
    return path


def _below(folder: Path, path: str) -> str:
    """A path as it is taken from the pipeline file's folder; an url stays what it is."""
    return path if "://" in path else str((folder / Path(path).expanduser()).absolute())


@dataclass(frozen=True)
class _Fault:
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


def json_schema() -> str:
    """The JSON Schema of a pipeline file, for editors; published as docs/pipeline.schema.json."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:penstock:pipeline-file:1",
        **PipelineConfig.model_json_schema(),
    }
    return json.dumps(schema, indent=2) + "\n"


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
    faults += document.outputs(data) + document.place(data) + document.names_of_many(data)
    config = None
    try:
        config = PipelineConfig.model_validate(data)
    except ValidationError as exc:
        faults += [document.fault(error) for error in exc.errors()]
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

    def read(self, node: yaml.Node, path: Path_) -> Any:
        """Turn a node into plain data, noting lines and repeated keys."""
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            result: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = str(key_node.value)
                line = key_node.start_mark.line + 1
                if key in result:
                    self.faults.append(_Fault(line, f"{_dotted((*path, key))} is given twice"))
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
        """Put secrets in place in the connections; returns what is missing."""
        faults = []
        connections = data.get("connections") if isinstance(data, dict) else None
        for key, connection in connections.items() if isinstance(connections, dict) else ():
            if not isinstance(connection, dict) or not isinstance(connection.get("url"), str):
                continue
            path = ("connections", key, "url")
            url = connection["url"]
            if _PASSWORD.search(_REFERENCE.sub(_MARK, url)):
                what = "a password stands in the file; write it as ${env:NAME} or ${file:path}"
                faults.append(_Fault(self._line(path), f"{_dotted(path)}: {what}"))
            missing: list[str] = []
            if not _has_form(url):
                missing.append(
                    "a reference is the whole url, or one part of it: postgresql://user:${env:NAME}@host/database"
                )
            connection["url"] = _with_secrets(url, partial(_secret, environment, folder, missing))
            if not missing and not connection["url"].strip():
                # libpq would take whatever database its own defaults name.
                whole = _REFERENCE.fullmatch(url)
                missing.append(f"{_named(*whole.groups())} is empty" if whole else "is empty")
            faults += [_Fault(self._line(path), f"{_dotted(path)}: {what}") for what in missing]
        return faults

    def fault(self, error: Any) -> _Fault:
        """Say one of pydantic's findings in our words; never repeats a url."""
        # Of what is wrong with a key itself, pydantic says so behind it.
        path: Path_ = tuple(part for part in error["loc"] if part != "[key]")
        given = error["input"]
        is_plain = isinstance(given, str | int | float | bool) and "url" not in path and _may_be_shown(given)
        shown = f", not {given!r}" if is_plain else ""
        match error["type"]:
            case "missing":
                what = "is missing"
            case "extra_forbidden":
                what = "is not an option" + _suggestion(path)
            case "literal_error" | "enum":
                what = f"must be {error['ctx']['expected']}{shown}"
            case "value_error":
                what = str(error["ctx"]["error"])
            case "string_pattern_mismatch" if path[-1] == "step":
                what = f"must be module:function{shown}"
            case "string_pattern_mismatch" if path[-1] == "source":
                what = f"must be 'trigger_queue', 'change_files' or module:name{shown}"
            case "string_pattern_mismatch":
                what = f"must be lower-case letters, digits and underscores, at most 36, beginning with a letter{shown}"
            case _:
                what = error["msg"].replace("Input should be", "must be") + shown
        return _Fault(self._line(path), f"{_dotted(path)}: {what}")

    def unknown_connections(self, data: Mapping[str, Any]) -> list[_Fault]:
        """Connections that are named but not given."""
        given = data.get("connections")
        faults = []
        for part in ("capture", "apply"):
            section, path = data.get(part), (part, "connection")
            name = section.get("connection") if isinstance(section, dict) else None
            if isinstance(given, dict) and isinstance(name, str) and name not in given:
                shown = f" {name!r}" if _may_be_shown(name) else " of this name"
                faults.append(_Fault(self._line(path), f"{_dotted(path)}: no connection{shown}{nearest(name, given)}"))
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
                    faults.append(_Fault(self._line(path), f"{_dotted(path)}: {to!r} {what}"))
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
                }
                if data.get("publish") is not None:
                    what = "publish: what comes from change files is published already; it can be applied"
                    return [_Fault(self._line(("publish",)), what)]
            case str(own) if ":" in own:
                needed = "path"
                odd = {
                    "connection": "a source of your own reads capture.path, through no connection",
                    "row_triggers": "a source of your own has no triggers",
                }
                if data.get("publish") is not None:
                    what = "publish: what comes from a source of your own can be applied, but not published"
                    return [_Fault(self._line(("publish",)), what)]
            case _:
                return []
        faults = [
            _Fault(self._line(path := ("capture", name)), f"{_dotted(path)}: {why}")
            for name, why in odd.items()
            if capture.get(name) is not None
        ]
        if capture.get(needed) is None:
            faults.append(_Fault(self._line(("capture",)), f"capture.{needed}: is missing"))
        return faults

    def _line(self, path: Path_) -> int:
        return _line_of(self._lines, path)


def _line_of(lines: Mapping[Path_, int], path: Path_) -> int:
    """The line of a path, or of the nearest thing around it."""
    while path not in lines:
        path = path[:-1]
    return lines[path]


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


def _dotted(path: Path_) -> str:
    return ".".join(str(part) for part in path)


def _suggestion(path: Path_) -> str:
    known: list[str] = []
    for part in (
        PipelineConfig,
        ConnectionConfig,
        CaptureConfig,
        RulesConfig,
        TableRuleConfig,
        ApplyConfig,
        PublishConfig,
    ):
        known += part.model_fields
    return nearest(str(path[-1]), known)
