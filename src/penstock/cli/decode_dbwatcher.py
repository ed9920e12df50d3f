"""`penstock decode dbwatcher`: messages of DbWatcher, as the changes that they say."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.console import say, warn
from penstock.errors import ConfigError, MalformedInputError, OperatorError

if TYPE_CHECKING:
    from penstock.formats.dbwatcher.changes import MessageChanges
    from penstock.formats.dbwatcher.message import Message

_MEGABYTE = 1_000_000


def dbwatcher(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Files of messages; - for standard input.")],
    limit: Annotated[
        int, typer.Option("--limit-mb", min=1, help="The maximum size of a message, in megabytes of XML.")
    ] = 64,
    # What is printed is JSON in any case.
    json: Annotated[bool, typer.Option("--json", hidden=True)] = False,
) -> None:
    """Print messages of DbWatcher as JSON lines: a change, a table's DDL or a statement to a line.

    Row values are printed, too, as the messages have them: text, or Base64 where a value is not text. A message
    compressed with GZIP or ZIP is told by its first bytes.
    """
    from penstock.formats.dbwatcher.files import split

    del json
    is_malformed = False
    empty: list[str] = []
    for name in files:
        content = _content(name, limit * _MEGABYTE)
        bodies = split(content)
        said = 0
        if len(bodies) > 1 and len(content) > limit * _MEGABYTE:
            warn(f"note: {name} has more than {limit:,} MB, of which the whole messages are printed; raise --limit-mb")
            is_malformed = True
            bodies.pop()
        for number, body in enumerate(bodies, start=1):
            where = name if len(bodies) == 1 else f"{name}, message {number}"
            try:
                lines = list(_lines(name, _read(body, where, limit * _MEGABYTE), where))
            except MalformedInputError as exc:
                warn(f"note: {exc}")
                is_malformed = True
                said += 1
                continue
            for line in lines:
                say(_json(line))
            said += len(lines)
        if not said:
            empty.append(name)
    if empty:
        more = f", {empty[1]}" if len(empty) == 2 else f" and {len(empty) - 1:,} others" if empty[1:] else ""
        warn(f"note: {empty[0]}{more}: nothing to print, as where only the position of a pipeline has moved")
    if is_malformed:
        raise typer.Exit(OperatorError.exit_code)


def _json(line: dict[str, Any]) -> str:
    text = json_.dumps(line, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, which no terminal and no file takes.
        return json_.dumps(line)
    return text


def _content(name: str, most_bytes: int) -> bytes:
    """Read a file, but no more of it than a message may have, and a byte."""
    try:
        if name == "-":
            return sys.stdin.buffer.read(most_bytes + 1)
        with Path(name).open("rb") as file:
            return file.read(most_bytes + 1)
    except OSError as exc:
        raise ConfigError(f"cannot read {name!r}: {(exc.strerror or '').lower()}") from exc


def _read(body: bytes, where: str, most_bytes: int) -> Message:
    from penstock.formats.dbwatcher.compression import Compression
    from penstock.formats.dbwatcher.message import Property
    from penstock.formats.dbwatcher.reader import MessageLimits, read_message

    packed = {b"\x1f\x8b": Compression.GZIP, b"PK": Compression.ZIP}.get(body[:2])
    properties = {} if packed is None else {Property.COMPRESSION_TYPE.value: packed.value}
    return read_message(body, properties, name=where, limits=MessageLimits(bytes=most_bytes))


def _lines(name: str, message: Message, where: str) -> Iterator[dict[str, Any]]:
    from penstock.formats.dbwatcher.changes import changes_of
    from penstock.formats.dbwatcher.message import CANCELLED

    try:
        found = changes_of(message, {})
    except MalformedInputError as exc:
        raise MalformedInputError(exc.what, where=", ".join(filter(None, (where, exc.where))), do=exc.do) from exc
    common: dict[str, Any] = {"file": name, "command": message.command.value}
    if found.keeps_open:
        common["is_open"] = True
    event = found.event or found.cancelled
    if event is not None:
        columns = {one.name: dict(one.attributes) for one in event.metadata}
        yield {
            **common,
            "txn_id": event.txn_id,
            "repl_key": event.repl_key,
            "op": "ddl",
            "action": CANCELLED if found.cancelled is not None else event.action.value,
            "schema_name": event.table.schema,
            "table_name": event.table.name,
        } | ({"columns": columns} if columns else {})
    if found.statement:
        yield {**common, "txn_id": message.head.ident, "op": "statement", **found.statement}
    yield from _rows(common, found)


def _rows(common: dict[str, Any], found: MessageChanges) -> Iterator[dict[str, Any]]:
    for part in found.parts:
        for change, key in zip(part.changes, part.repl_keys, strict=True):
            images = {"before": change.before, "after": change.after}
            yield {
                **common,
                "txn_id": part.txn_id,
                "repl_key": key,
                "change_seq": change.change_seq,
                "op": "content" if found.content_of is not None else change.op.value,
                "schema_name": change.table.schema,
                "table_name": change.table.name,
                **{name: image for name, image in images.items() if image is not None},
            }
