"""The text of a first pipeline file: settings, and comments that say what was seen."""

from __future__ import annotations

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


@dataclass(frozen=True)
class FileParts:
    """What a pipeline file is made of.

    Attributes:
        name: Of the pipeline.
        source_url, target_url: As they are to stand in the file, secrets as references.
        patterns: Of the tables to capture.
        excluded: Tables that cannot be carried, each with the reason.
        source, target: What the databases say of themselves; None while nobody has looked.
        tables: Those that the patterns mean.
    """

    name: str
    source_url: str
    target_url: str
    patterns: Sequence[str]
    excluded: Mapping[TableName, str] = field(default_factory=dict)
    source: DatabaseFacts | None = None
    target: DatabaseFacts | None = None
    tables: Sequence[TableFacts] = ()


def file_text(parts: FileParts) -> str:
    """Write a pipeline file that `penstock plan` accepts."""
    return "\n".join(_lines(parts)) + "\n"


def _lines(parts: FileParts) -> Iterator[str]:
    yield "# Made by `penstock init`. Next: `penstock plan`, `penstock setup`, `penstock run`."
    yield "# Every setting: docs/pipeline-file.md. Secrets are written as ${env:NAME} or ${file:path}."
    yield "version: 1"
    yield f"name: {parts.name}"
    yield "connections:"
    yield from _connection(SOURCE, parts.source_url, parts.source)
    yield from _connection(TARGET, parts.target_url, parts.target)
    yield "capture:"
    yield "  source: trigger_queue"
    yield f"  connection: {SOURCE}"
    yield from _list("tables", parts.patterns, indent="  ")
    yield from _seen([table for table in parts.tables if table.name not in parts.excluded])
    if parts.excluded:
        yield "rules:"
        yield "  exclude:"
        for table, reason in sorted(parts.excluded.items()):
            yield from _comment(reason, indent="    ")
            yield f"    - {_quoted(TablePattern.exactly(table))}"
    yield "apply:"
    yield f"  connection: {TARGET}"
    yield "  # How many transactions may be applied at once; Penstock measures how many pay."
    yield "  parallelism: 2"
    yield "  # apply: the target's tables follow ALTER TABLE, CREATE TABLE and DROP TABLE at the source."
    yield "  # ddl: apply"
    yield from _keyless([table for table in parts.tables if table.name not in parts.excluded and not table.key])


def _connection(name: str, url: str, facts: DatabaseFacts | None) -> Iterator[str]:
    if facts is not None:
        yield from _comment(f"{facts.version}, {facts.collation}", indent="  ")
    yield f"  {name}:"
    yield "    type: postgres"
    yield f"    url: {_quoted(url)}"


def _seen(tables: Sequence[TableFacts]) -> Iterator[str]:
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


def _list(name: str, values: Sequence[str], *, indent: str) -> Iterator[str]:
    yield f"{indent}{name}:"
    yield from (f"{indent}  - {_quoted(value)}" for value in values)


def _quoted(text: str) -> str:
    """A text in YAML's double quotes, whatever it holds."""
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08X}"
