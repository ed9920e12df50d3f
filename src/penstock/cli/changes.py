"""`penstock changes`: what an archive of change files holds, for a person or a program."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.console import JsonOption, say, shown, warn
from penstock.text import count, printable

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.archive import Archive
    from penstock.patterns import TablePattern


_Row = Mapping[str, Any]

_POSITION = "POSITION|TIME"


def changes(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The archive: a folder, or the url of an object store.")],
    since: Annotated[
        str | None, typer.Option("--from", metavar=_POSITION, help="The first transaction; UTC without an offset.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar=_POSITION, help="The last transaction.")] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="PATTERN", help="Only these tables; may be repeated.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Print what an archive of change files holds, transaction by transaction, row values included."""
    from penstock.archive import Archive
    from penstock.patterns import TablePattern
    from penstock.sources.change_files.reader import only_tables
    from penstock.sources.change_files.span import Bound, find_span, read_span
    from penstock.storage import open_storage

    patterns = [TablePattern.parse(text) for text in table or ()]
    begin = None if since is None else Bound.parse(since, option="--from")
    end = None if until is None else Bound.parse(until, option="--until")
    archive = Archive(open_storage(path))
    show = _print_lines if json else _Printer().show
    found = 0
    for batch in read_span(archive, find_span(archive, begin, end)):
        meant = only_tables(batch, lambda table: not patterns or any(p.matches(table) for p in patterns))
        found += meant.num_rows
        show(meant)
    for note in _notes(archive, patterns, found=found):
        warn(f"note: {printable(note)}")


def _notes(archive: Archive, patterns: Sequence[TablePattern], *, found: int) -> Iterator[str]:
    """Say why there is nothing to see, or not all that was asked for."""
    last = archive.count_records()
    record = archive.record(last) if last else None
    tables = {file.table for file in archive.newest_definitions().tables}
    if record is None or not (tables or record.published[0]):
        yield "nothing was published to this archive yet"
        return
    unknown = [pattern.text for pattern in patterns if not any(pattern.matches(table) for table in tables)]
    if unknown:
        yield f"the archive has no table like {', '.join(map(repr, unknown))}"
    if not found:
        yield f"nothing matches; the archive ends at position {record.end}"


def _print_lines(batch: pa.RecordBatch) -> None:
    import pyarrow as pa

    from penstock.formats.change_file import encode_lines

    sys.stdout.flush()
    sys.stdout.buffer.write(encode_lines(pa.Table.from_batches([batch])))


class _Printer:
    """Prints changes under a line for their transaction, or for the copy that they are rows of."""

    def __init__(self) -> None:
        self._heading = ""

    def show(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            heading = _heading(row)
            if heading != self._heading:
                say(heading if not self._heading else f"\n{heading}")
                self._heading = heading
            for line in _lines(row):
                say(line)


def _heading(row: _Row) -> str:
    if row["op"] == "snapshot":
        return f"position {row['commit_scn']}  copy of {_table(row)}"
    parts = [f"position {row['commit_scn']}", f"transaction {printable(row['txn_id'])}"]
    if row["committed_at"] is not None:
        parts.append(row["committed_at"].isoformat(timespec="microseconds"))
    if row["txn_changes"] is not None:
        parts.append(count(row["txn_changes"], "change"))
    return "  ".join(parts)


def _lines(row: _Row) -> Iterator[str]:
    before, after, key = (_image(row[name]) for name in ("before", "after", "key"))
    named = "".join(f" {printable(name)}={shown(value)}" for name, value in key.items())
    is_snapshot = row["op"] == "snapshot"
    yield f"  row{named}" if is_snapshot else f"  {row['change_seq'] + 1} {row['op']} {_table(row)}{named}"
    for name, value in after.items():
        old = f"{shown(before[name])} => " if name in before else ""
        if old or name not in key:
            yield f"      {printable(name)}: {old}{shown(value)}"
    if row["after"] is None:
        for name, value in before.items():
            if name not in key:
                yield f"      {printable(name)}: {shown(value)}"
    for name in ("ddl", "tag", "meta"):
        if row[name] is not None:
            yield f"      {name}: {printable(row[name])}"


def _table(row: _Row) -> str:
    return printable(f"{row['schema_name']}.{row['table_name']}")


def _image(text: str | None) -> dict[str, str | None]:
    return {} if text is None else dict(json_.loads(text))
