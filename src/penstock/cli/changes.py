"""`penstock changes`: what an archive of change files holds, for a person or a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import JsonOption, warn
from penstock.cli.stream import FullOption, Printer, print_lines
from penstock.text import printable

if TYPE_CHECKING:
    from penstock.archive import Archive
    from penstock.patterns import TablePattern

_POSITION = "POSITION|TIME"


def changes(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The archive: a folder, or the url of an object store.")],
    since: Annotated[
        str | None, typer.Option("--from", metavar=_POSITION, help="The first transaction; UTC without an offset.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar=_POSITION, help="The last transaction.")] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="PATTERN", help="Only tables that match; repeatable.")
    ] = None,
    full: FullOption = False,
    json: JsonOption = False,
) -> None:
    """Print what an archive of change files holds, transaction by transaction, row values included."""
    from penstock.archive import Archive
    from penstock.patterns import TablePattern
    from penstock.sources.change_files.read import read_archive
    from penstock.storage import open_storage

    patterns = [TablePattern.parse(text) for text in table or ()]
    printer = Printer(full=full)
    show = print_lines if json else printer.show
    found = 0
    for batch in read_archive(path, since, until, table or (), options=("--from", "--until")).batches():
        found += batch.num_rows
        show(batch)
    printer.note_cuts()
    for note in _notes(Archive(open_storage(path)), patterns, found=found):
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
