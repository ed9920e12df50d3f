"""`penstock decode db2-log`: buffers of Db2's log, as records, as transactions, or as changes."""

from __future__ import annotations

import json as json_
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.console import JsonOption, say, warn
from penstock.cli.stream import FullOption, Printer
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.sources.db2_log.catalog import Catalog
    from penstock.sources.db2_log.framing import LogRecord


class Show(StrEnum):
    """What is printed of buffers."""

    RECORDS = "records"
    TRANSACTIONS = "transactions"
    CHANGES = "changes"


def db2_log(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Buffers, in the order in which they were read.")],
    catalog: Annotated[
        Path, typer.Option("--catalog", metavar="FILE.json", help="The tables, and how the log was read.")
    ],
    show: Annotated[
        Show, typer.Option("--show", help="Print every record, or only what was committed.")
    ] = Show.CHANGES,
    with_hex: Annotated[bool, typer.Option("--hex", help="Also print the bytes of each record.")] = False,
    full: FullOption = False,
    json: JsonOption = False,
) -> None:
    """Print buffers of Db2's log; of changes, row values are printed, too. An update that appends to a LOB says so."""
    from penstock.sources.db2_log.catalog import read_catalog

    known = read_catalog(_read(catalog).decode("utf-8", "replace"), where=str(catalog))
    buffers = [(str(file), _read(file)) for file in files]
    if show is Show.RECORDS:
        lines: Iterator[dict[str, Any]] = (_record(record, with_hex) for record in _records(buffers, known))
    else:
        lines = _committed(buffers, known, show)
    if show is Show.CHANGES and not json:
        printer = Printer(full=full)
        for line in lines:
            printer.show_row(line)
        printer.note_cuts()
        return
    for line in lines:
        say(json_.dumps(_as_json(line), ensure_ascii=False) if json else _plain(line))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise ConfigError(f"cannot read {str(file)!r}: {(exc.strerror or '').lower()}") from exc


def _records(buffers: Sequence[tuple[str, bytes]], catalog: Catalog) -> Iterator[LogRecord]:
    from penstock.sources.db2_log.framing import Lri, read_records

    last = Lri(-1, -1)
    for name, content in buffers:
        for record in read_records(content, catalog.form, name):
            if record.lri <= last:
                record.refuse("the record's identifier is not above that of the record before")
            last = record.lri
            yield record


def _record(record: LogRecord, with_hex: bool) -> dict[str, Any]:
    from penstock.sources.db2_log.transactions import COMPONENTS

    line: dict[str, Any] = {
        "file": record.name,
        "offset": record.offset,
        "length": record.end - record.start,
        "type": f"0x{record.type:04X}",
        "flags": f"0x{record.flags:04X}",
        "lri": list(record.lri),
        "stream": record.stream,
        "lso": record.lso,
        "txn_id": record.tid.hex(),
        "sqlcode": record.sqlcode,
    }
    if record.undone_lso is not None:
        line["undone_lso"] = record.undone_lso
    if record.type in COMPONENTS and record.end - record.payload >= 2:
        line["component"], line["function"] = record.buffer[record.payload], record.buffer[record.payload + 1]
    if with_hex:
        line["hex"] = bytes(record.buffer[record.offset : record.end]).hex()
    return line


def _committed(buffers: Sequence[tuple[str, bytes]], catalog: Catalog, show: Show) -> Iterator[dict[str, Any]]:
    from penstock.sources.db2_log.chains import LogBeginning
    from penstock.sources.db2_log.changes import RowChangeDecoder
    from penstock.sources.db2_log.reading import row_of, txn_id
    from penstock.sources.db2_log.transactions import Gatherer, RowResolver
    from penstock.values import encode_image

    numbers = {name: number for number, (name, _) in enumerate(buffers, 1)}
    first = next(iter(_records(buffers, catalog)), None)
    beginning = None if first is None or first.lso is None else LogBeginning(first.stream, first.lso)
    gatherer, resolver, decoder = Gatherer(catalog, beginning), RowResolver(catalog), RowChangeDecoder(catalog)
    cut = 0
    keys = {table.name: table.key for table in catalog.tables}
    for committed in gatherer.gather(_records(buffers, catalog)):
        cut += committed.is_cut
        rows, outcome, at_s = resolver.resolve(committed), committed.outcome, committed.committed_at_s
        common = {
            "txn_id": txn_id(committed),
            "commit_scn": (numbers[outcome.name] << 32) + outcome.offset,
            "txn_changes": len(rows),
            "committed_at": None if at_s is None else datetime.fromtimestamp(at_s, UTC),
        }
        if show is Show.TRANSACTIONS:
            yield {**common, "records": len(committed.records), "file": outcome.name, "offset": outcome.offset}
            continue
        for seq, row in enumerate(rows):
            decoded = decoder.decode(row, seq)
            line = common | row_of(decoded.change, keys[row.table.name])
            yield line | ({"append": encode_image(decoded.append)} if decoded.append else {})
    for what, count in (
        ("transactions that were open where the buffers begin, and did more than is shown", cut),
        ("transactions that have no outcome yet", len(gatherer.open)),
        ("records that are not for readers of the log, and were skipped", gatherer.passed_over),
        ("values of columns that are NOT LOGGED, and were left out", decoder.left.not_logged),
        ("values that the log does not hold, and were left out", decoder.left.unreplicable),
    ):
        if count:
            warn(f"note: {what}: {count}")


def _as_json(line: dict[str, Any]) -> dict[str, Any]:
    """Return it with its time as text, and its images as objects."""
    plain = dict(line)
    if plain.get("committed_at") is not None:
        plain["committed_at"] = plain["committed_at"].isoformat(timespec="microseconds")
    for name in ("key", "before", "after", "append"):
        if plain.get(name) is not None:
            plain[name] = json_.loads(plain[name])
    return plain


def _plain(line: dict[str, Any]) -> str:
    found = _as_json(line).items()
    return "  ".join(f"{name}={json_.dumps(v, ensure_ascii=False)}" for name, v in found if v is not None)
