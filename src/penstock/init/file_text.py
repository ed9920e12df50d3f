"""The text of a first pipeline file: settings, and comments that say what was seen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.change import TableName
from penstock.examination import DatabaseFacts, TableFacts
from penstock.patterns import TablePattern
from penstock.text import count, printable, size

SOURCE, TARGET = "source", "target"
"""What the file calls its connections."""

_MOST_TABLES = 40
_WIDTH = 110

_YAML_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
"""Words that mean a value without quotes."""

Scalar = str | int | bool


@dataclass(frozen=True)
class Entry:
    """A setting of the file, and the comments above it.

    Attributes:
        is_example: It stands in the file as a comment, to be taken up by a person.
    """

    name: str
    value: Scalar | Sequence[str] | Sequence[Entry]
    comments: Sequence[str] = ()
    is_example: bool = False


@dataclass(frozen=True)
class ConnectionPart:
    """A database or a cluster, as the file has it: secrets as references.

    Attributes:
        name: What the file calls it.
        entries: Below its name.
        seen: What it said of itself; empty while nobody has looked.
    """

    name: str
    entries: Sequence[Entry]
    seen: str = ""


@dataclass(frozen=True)
class CapturePart:
    """Where changes come from.

    Attributes:
        kind: As `capture.source` has it.
        place: The entry `connection` or `path`.
        patterns: Of the tables to capture.
        entries: Further settings below `capture`.
        seen: What was found there, a line each.
        facts: What a database says of itself and its tables; None of another place.
    """

    kind: str
    place: Entry
    patterns: Sequence[str]
    entries: Sequence[Entry] = ()
    seen: Sequence[str] = ()
    facts: DatabaseFacts | None = None

    @property
    def tables(self) -> Sequence[TableFacts]:
        """The tables of the database that are captured; none where they are in no database."""
        return self.facts.tables if self.facts is not None and self.kind == "trigger_queue" else ()


@dataclass(frozen=True)
class OutputPart:
    """Where changes go: the section `apply` or `publish`."""

    section: str
    entries: Sequence[Entry]


@dataclass(frozen=True)
class FileParts:
    """What a pipeline file is made of.

    Attributes:
        name: Of the pipeline.
        excluded: Tables that cannot be carried, each with the reason.
        schema: Path of the JSON Schema for editors; None where it is not installed.
    """

    name: str
    connections: Sequence[ConnectionPart]
    capture: CapturePart
    output: OutputPart
    excluded: Mapping[TableName, str] = field(default_factory=dict)
    schema: str | None = None

    @property
    def kept(self) -> Sequence[TableFacts]:
        """The tables of the source database that are captured."""
        return [table for table in self.capture.tables if table.name not in self.excluded]


def file_text(parts: FileParts) -> str:
    """Write a pipeline file that `penstock plan` accepts."""
    return "\n".join(_lines(parts)) + "\n"


def _lines(parts: FileParts) -> Iterator[str]:
    if parts.schema is not None:
        yield f"# yaml-language-server: $schema={parts.schema}"
    yield "# Made by `penstock init`. Next: `penstock plan`, `penstock setup`, `penstock run`."
    yield "# Every setting: docs/pipeline-file.md. Secrets are written as ${env:NAME} or ${file:path}."
    yield "version: 1"
    yield f"name: {parts.name}"
    yield "connections:"
    for connection in parts.connections:
        yield from _connection(connection)
    capture = parts.capture
    yield "capture:"
    yield from _entries([Entry("source", capture.kind), capture.place], indent="  ")
    yield from _entries([Entry("tables", list(capture.patterns))], indent="  ")
    for line in capture.seen:
        yield from _comment(line, indent="  ")
    yield from _table_sizes(parts.kept)
    yield from _entries(capture.entries, indent="  ")
    if parts.excluded:
        yield "rules:"
        yield "  exclude:"
        for table, reason in sorted(parts.excluded.items()):
            yield from _comment(reason, indent="    ")
            yield f"    - {_quoted(TablePattern.exactly(table))}"
    yield f"{parts.output.section}:"
    yield from _entries(parts.output.entries, indent="  ")
    if parts.output.section == "apply":
        yield from _keyless([table for table in parts.kept if not table.key])


def connection_text(connection: ConnectionPart) -> str:
    """Write a file that has one connection, and is no pipeline file yet."""
    return "\n".join(["connections:", *_connection(connection)])


def _connection(connection: ConnectionPart) -> Iterator[str]:
    if connection.seen:
        yield from _comment(connection.seen, indent="  ")
    yield f"  {connection.name}:"
    yield from _entries(connection.entries, indent="    ")


def _entries(entries: Sequence[Entry], *, indent: str) -> Iterator[str]:
    for entry in entries:
        for comment in entry.comments:
            yield from _comment(comment, indent=indent)
        mark = "# " if entry.is_example else ""
        value = entry.value
        if isinstance(value, str | int):
            yield f"{indent}{mark}{_name(entry.name)}: {_scalar(value)}"
        elif not value:
            yield f"{indent}{mark}{_name(entry.name)}: []"
        else:
            yield f"{indent}{mark}{_name(entry.name)}:"
            for one in value:
                if isinstance(one, Entry):
                    yield from _entries([one], indent=f"{indent}{mark}  ")
                else:
                    yield f"{indent}{mark}  - {_quoted(one)}"


def _table_sizes(tables: Sequence[TableFacts]) -> Iterator[str]:
    """The captured tables, the largest first."""
    if not tables:
        return
    whole = size(sum(table.size_bytes for table in tables))
    yield f"  # {count(len(tables), 'table')}, {whole}, the largest first:"
    for table in sorted(tables, key=lambda one: (-one.size_bytes, one.name))[:_MOST_TABLES]:
        rows = "rows unknown" if table.rows is None else f"about {count(table.rows, 'row')}"
        key = f"key {', '.join(table.key)}" if table.key else "no key"
        parts = f", {count(table.partitions, 'partition')}" if table.partitions else ""
        yield f"  #   {printable(f'{table.name}: {size(table.size_bytes)}, {rows}, {key}{parts}')}"
    if len(tables) > _MOST_TABLES:
        yield f"  #   and {len(tables) - _MOST_TABLES} more"


def _keyless(tables: Sequence[TableFacts]) -> Iterator[str]:
    if not tables:
        return
    names = ", ".join(str(table.name) for table in tables[:5]) + (", ..." if len(tables) > 5 else "")
    yield from _comment(
        f"Without a key rows are found by all their columns: {names}. Name columns that do:", indent="  "
    )
    yield "  # tables:"
    yield f"  #   {_quoted(TablePattern.exactly(tables[0].name))}: {{key: [...]}}"


def _comment(text: str, *, indent: str) -> Iterator[str]:
    """Comment lines; what a database says may hold line feeds, which must not end a comment."""
    line = ""
    for word in printable(text).split(" "):
        if line and len(f"{indent}# {line} {word}") > _WIDTH:
            yield f"{indent}# {line}"
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield f"{indent}# {line}"


def _name(name: str) -> str:
    """A setting's name, in quotes where it may be anything, as names of Kafka's settings and of tables."""
    return name if re.fullmatch(r"[A-Za-z][A-Za-z0-9_.]*", name) and name.lower() not in _YAML_WORDS else _quoted(name)


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) or _is_word(value) else _quoted(value)


def _is_word(text: str) -> bool:
    """Whether YAML reads a text as a text also without quotes."""
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", text) is not None and text.lower() not in _YAML_WORDS


def _quoted(text: str) -> str:
    """A text in YAML's double quotes, whatever it holds."""
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08X}"
