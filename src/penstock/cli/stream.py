"""The change stream, printed for a person or a program."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.cli.console import say, shown
from penstock.text import count, printable

if TYPE_CHECKING:
    import pyarrow as pa

_Row = Mapping[str, Any]


def print_lines(batch: pa.RecordBatch) -> None:
    """Print changes as JSON lines, at once."""
    import pyarrow as pa

    from penstock.formats.change_file import encode_lines

    sys.stdout.flush()
    sys.stdout.buffer.write(encode_lines(pa.Table.from_batches([batch])))


class Printer:
    """Prints changes under a line for their transaction, or for the copy that they are rows of."""

    def __init__(self) -> None:
        self._heading = ""

    def show(self, batch: pa.RecordBatch, *, lacking: str = "") -> None:
        """Print changes in the order in which they come.

        Args:
            lacking: What is not there of their transaction, which has no position then.
        """
        for row in batch.to_pylist():
            heading = _heading(row, lacking)
            if heading != self._heading:
                say(heading if not self._heading else f"\n{heading}")
                self._heading = heading
            for line in _lines(row):
                say(line)


def _heading(row: _Row, lacking: str) -> str:
    if row["op"] == "snapshot":
        return f"position {row['commit_scn']}  copy of {_table(row)}"
    place = f"position {row['commit_scn']}" if not lacking else f"incomplete, {lacking}"
    parts = [place, f"transaction {printable(row['txn_id'])}"]
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
