"""The change stream, printed for a person or a program."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.console import say, shown, warn
from penstock.text import count, printable, time_text

if TYPE_CHECKING:
    import pyarrow as pa

_Row = Mapping[str, Any]

_LONGEST = 200
"""Of a longer value only so many characters are printed."""

FullOption = Annotated[bool, typer.Option("--full", help="Print long values whole.")]


def print_lines(batch: pa.RecordBatch) -> None:
    """Print changes as JSON lines, at once."""
    import pyarrow as pa

    from penstock.formats.change_file import encode_lines

    sys.stdout.flush()
    sys.stdout.buffer.write(encode_lines(pa.Table.from_batches([batch])))


class Printer:
    """Prints changes under a line for their transaction, or for the copy that they are rows of."""

    def __init__(self, *, full: bool = False) -> None:
        """Print long values whole if `full`, else their beginnings."""
        self._most = sys.maxsize if full else _LONGEST
        self._heading = ""
        self._has_cut = False

    def note_cuts(self) -> None:
        """Say how to see values whole, if any was cut."""
        if self._has_cut:
            warn("note: long values are cut; --full prints them whole")

    def show(self, batch: pa.RecordBatch, *, lacking: str = "") -> None:
        """Print changes in the order in which they come.

        Args:
            lacking: What is not there of their transaction, which has no position then.
        """
        for row in batch.to_pylist():
            self.show_row(row, lacking=lacking)

    def show_row(self, row: _Row, *, lacking: str = "") -> None:
        """Print one change, as a row of the change stream."""
        heading = _heading(row, lacking)
        if heading != self._heading:
            say(heading if not self._heading else f"\n{heading}")
            self._heading = heading
        for line in self._lines(row):
            say(line)

    def _lines(self, row: _Row) -> Iterator[str]:
        before, after, key = (_image(row[name]) for name in ("before", "after", "key"))
        named = "".join(f" {printable(name)}={self._value(value)}" for name, value in key.items())
        is_snapshot = row["op"] == "snapshot"
        yield f"  row{named}" if is_snapshot else f"  {row['change_seq'] + 1} {row['op']} {_table(row)}{named}"
        for name, value in after.items():
            old = f"{self._value(before[name])} => " if name in before else ""
            if old or name not in key:
                yield f"      {printable(name)}: {old}{self._value(value)}"
        if row["after"] is None:
            for name, value in before.items():
                if name not in key:
                    yield f"      {printable(name)}: {self._value(value)}"
        for name, value in _image(row.get("append")).items():
            yield f"      {printable(name)}: appended {self._value(value)}"
        for name in ("ddl", "tag", "meta"):
            if row.get(name) is not None:
                yield f"      {name}: {printable(row[name])}"

    def _value(self, value: str | None) -> str:
        if value is None or len(value) <= self._most:
            return shown(value)
        self._has_cut = True
        return f"{shown(value[: self._most])}... ({len(value):,} characters)"


def _heading(row: _Row, lacking: str) -> str:
    if row["op"] == "snapshot":
        return f"position {row['commit_scn']}  copy of {_table(row)}"
    place = f"position {row['commit_scn']}" if not lacking else f"incomplete, {lacking}"
    parts = [place, f"transaction {printable(row['txn_id'])}"]
    if row["committed_at"] is not None:
        parts.append(time_text(row["committed_at"]))
    if row["txn_changes"] is not None:
        parts.append(count(row["txn_changes"], "change"))
    return "  ".join(parts)


def _table(row: _Row) -> str:
    return printable(f"{row['schema_name']}.{row['table_name']}")


def _image(text: str | None) -> dict[str, str | None]:
    return {} if text is None else dict(json_.loads(text))
