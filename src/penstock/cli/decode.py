"""`penstock decode`: what others have written, as changes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.console import FileOption, JsonOption, defaults, warn
from penstock.cli.decode_db2 import db2_log
from penstock.cli.decode_dbwatcher import dbwatcher
from penstock.cli.groups import takes_groups
from penstock.cli.stream import FullOption, Printer, print_lines
from penstock.errors import ConfigError, MalformedInputError, OperatorError, PenstockError
from penstock.text import are, count, printable

if TYPE_CHECKING:
    from penstock.formats.debezium.decode import DecodeSettings
    from penstock.formats.debezium.record import TopicRecord
    from penstock.sources.debezium.log import RecordLog
    from penstock.sources.debezium.sample import Sample

app = typer.Typer(help="Show data written by other products as changes.", no_args_is_help=True)
app.command("db2-log")(db2_log)
app.command("dbwatcher")(dbwatcher)

_FORM = "{topic, partition, key, value, headers}"


@dataclass
class _Range:
    """Which records of each partition, or lines of each file, are read, and what was left out because of the limit."""

    first: int | None
    end: int | None
    most: int
    notes: list[str] = field(default_factory=list)

    def cut(self, first: int, end: int, place: str) -> tuple[int, int]:
        """Return which of these offsets are read, the second one always behind the last."""
        if self.first is not None:
            first = max(first, self.first if self.first >= 0 else end + self.first)
        end = end if self.end is None else min(end, self.end)
        if end - first > self.most:
            end = first + self.most
            self.notes.append(_cut_off(place, end))
        return first, end


@dataclass(frozen=True)
class PartOptions:
    """Which part of each partition, or file, is read."""

    first: Annotated[
        int | None,
        typer.Option("--from", metavar="OFFSET", help="The first offset of each partition; -N: the last N records."),
    ] = None
    end: Annotated[
        int | None, typer.Option("--to", metavar="OFFSET", help="The offset after the last one of each partition.")
    ] = None
    limit: Annotated[
        int,
        typer.Option("--limit", min=1, help="The maximum number of records of each partition, or lines of each file."),
    ] = 100_000


@app.command("debezium")
@takes_groups
def debezium(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|TOPIC", help=f"Files of JSON lines {_FORM}, or of kcat -J; - for standard input; or topics."
        ),
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", metavar="HOST:PORT", help="Read topics of this Kafka cluster.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Read topics as this pipeline file does; all of them if none is named."),
    ] = None,
    part: PartOptions = PartOptions(),
    full: FullOption = False,
    json: JsonOption = False,
) -> None:
    """Print Debezium events as changes, transaction by transaction in commit order, and name what looks wrong.

    Row values are printed, too. Nothing is followed, and no offset is committed.
    """
    which = _Range(part.first, part.end, part.limit)
    file = file or (defaults.file if defaults.is_said else None)
    if bootstrap is not None and file is not None:
        raise ConfigError("--bootstrap names a cluster, and so does the pipeline file", do="give one of them")
    if bootstrap is not None or file is not None:
        sample = _of_topics(sources or [], bootstrap, file, which)
    else:
        sample = _of_files(sources or [], which)
    _print(sample, which.notes, full=full, json=json)
    if sample.is_malformed:
        raise typer.Exit(OperatorError.exit_code)


@app.command("event-log")
def event_log(
    file: FileOption = None,
    form: Annotated[
        Literal["xds", "changes"],
        typer.Option("--format", help="An XDS document, or the changes that would be applied."),
    ] = "xds",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The maximum number of rows of the log.")] = None,
    full: FullOption = False,
    json: JsonOption = False,
) -> None:
    """Print what the next poll of the pipeline's event log would find, and which rows it could not use.

    Row values are printed, too. Nothing is written: no status, and no file.
    """
    from penstock.formats.xds.writer import document_of
    from penstock.pipeline_file import load
    from penstock.sources.event_log.changes import AsChanges
    from penstock.sources.event_log.channel import AsElements
    from penstock.sources.event_log.preview import preview
    from penstock.sources.event_log.rows import reasons
    from penstock.sources.recorded import batches_of
    from penstock.wiring import open_event_log

    file = file or defaults.file
    config = load(file)
    if config.capture.source != "event_log":
        raise ConfigError("the pipeline does not read an event log", where=str(file), do="capture.source: event_log")
    with closing(open_event_log(config, is_xds=form == "xds")) as log:
        found = preview(log, log.settings, AsElements() if form == "xds" else AsChanges(), limit=limit)
        keys = {table.name: table.primary_key.columns for table in log.tables() if table.primary_key is not None}
    if form == "xds":
        sys.stdout.write(document_of(found.elements()).decode())
    else:
        printer = Printer(full=full)
        show = print_lines if json else printer.show
        for batch in batches_of(found.transactions(), keys):
            show(batch)
        printer.note_cuts()
    for (outcome, reason), record_ids in reasons(found.settled.items()).items():
        warn(f"note: record_id {', '.join(map(str, record_ids))}: status {outcome}: {reason}")
    if found.own:
        user = printable(repr(log.settings.suppressed_user))
        warn(
            f"note: {count(found.own, 'new row')} of user {user}, the driver's own, {are(found.own)} not read;"
            " capture.event_log.allow_loopback: true reads such rows, too"
        )
    if any(one.outcome == "E" for one in found.settled.values()):
        raise typer.Exit(OperatorError.exit_code)


def _print(sample: Sample, notes: Sequence[str], *, full: bool, json: bool) -> None:
    printer = Printer(full=full)
    show = print_lines if json else printer.show
    for batch in sample.copies():
        show(batch)
    for batch in sample.changes():
        show(batch)
    for lacking, batch in sample.incomplete():
        # Without an END they have no place in the order of the others, which programs rely on.
        if not json:
            printer.show(batch, lacking=lacking)
    printer.note_cuts()
    for note in (*notes, *sample.notes()):
        warn(f"note: {note}")


def _of_topics(topics: Sequence[str], bootstrap: str | None, file: Path | None, which: _Range) -> Sample:
    from penstock.sources.debezium.sample import HeldRecords, Sample

    log, settings = _open(topics, bootstrap, file)
    extents = log.extents()
    for pattern in topics:
        if not any(fnmatchcase(partition.topic, pattern) for partition in extents):
            raise OperatorError(
                f"there is no topic {pattern!r}, or this user may not see it",
                where=log.label,
                do="correct the name, or allow this user to describe the topic",
            )
    ranges = {partition: which.cut(extent.first, extent.end, str(partition)) for partition, extent in extents.items()}
    records = (record for partition, of in ranges.items() if of[0] < of[1] for record in log.read(partition, *of))
    return Sample(HeldRecords(records, log.label), settings, topics={partition.topic for partition in extents})


def _open(topics: Sequence[str], bootstrap: str | None, file: Path | None) -> tuple[RecordLog, DecodeSettings]:
    from penstock.formats.debezium.decode import DecodeSettings
    from penstock.pipeline_file import load
    from penstock.sources.debezium.kafka import KafkaLog
    from penstock.wiring import open_events

    if file is None:
        if not topics:
            raise ConfigError("no topic is named", do="name topics, that of transactions among them, or patterns")
        return KafkaLog({"bootstrap.servers": bootstrap or ""}, tuple(topics)), DecodeSettings()
    config = load(file)
    if config.capture.source != "debezium":
        raise ConfigError("the pipeline does not read change events", where=str(file), do="use --bootstrap")
    log, settings = open_events(config)
    if not topics:
        return log, settings
    if not isinstance(log, KafkaLog):
        raise ConfigError("the pipeline reads files, and a topic is named", where=str(file), do="name none, or no -f")
    return replace(log, topics=tuple(topics)), settings


def _of_files(names: Sequence[str], which: _Range) -> Sample:
    from penstock.formats.debezium.decode import DecodeSettings
    from penstock.formats.debezium.record import read_line
    from penstock.sources.debezium.sample import HeldRecords, Sample

    if not names:
        raise ConfigError("no file is named, and no cluster", do="name files, or --bootstrap HOST:PORT and topics")
    records: list[TopicRecord] = []
    malformed: list[PenstockError] = []
    for name in names:
        for number, line in _lines(name, which):
            try:
                records.append(read_line(line, file=name, number=number))
            except MalformedInputError as exc:
                malformed.append(exc)
    topics = {record.topic for record in records}
    return Sample(HeldRecords(records, ", ".join(names)), DecodeSettings(), topics=topics, malformed=malformed)


def _lines(name: str, which: _Range) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that hold anything, with their numbers from 1; offsets count them from 0."""
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            lines: Iterable[tuple[int, bytes]] = enumerate(file)
            if which.first is not None:
                lines = deque(lines, -which.first) if which.first < 0 else islice(lines, which.first, None)
            for taken, (offset, line) in enumerate(lines):
                if which.end is not None and offset >= which.end:
                    break
                if taken == which.most:
                    which.notes.append(_cut_off(name, offset))
                    break
                if line.strip():
                    yield offset + 1, line.removesuffix(b"\n")
    except OSError as exc:
        do = "a topic needs --bootstrap HOST:PORT, or -f and a pipeline file" if not Path(name).exists() else ""
        raise ConfigError(f"cannot read {name!r}: {(exc.strerror or '').lower()}", do=do) from exc


def _cut_off(place: str, offset: int) -> str:
    return f"{place} was read up to offset {offset}, as --limit says"
