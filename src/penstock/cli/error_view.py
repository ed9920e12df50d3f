"""How an entry of the error queue is shown: to people as tables, to programs as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.change import Op
from penstock.cli.console import out, print_facts, print_with_margin, say, say_wrapped, shown
from penstock.text import count, printable, short_time, time_text

if TYPE_CHECKING:
    from penstock.apply.entry_rows import CurrentRow
    from penstock.apply.error_queue import ErrorEntry, PastAction
    from penstock.change import Image, TableName
    from penstock.pipeline.errors import ShownEntry
    from penstock.pipeline.pipeline import Pipeline
    from penstock.pipeline.publication import Publication

_WIDEST = 60
"""The most characters of a value that a table shows; JSON has all of them."""

_NARROWEST = 8


def named(table: TableName, pipeline: Pipeline | Publication) -> str:
    """A table at the target; where rules have renamed it, with its name at the source."""
    origins = ", ".join(map(str, pipeline.origins(table)))
    return f"{table} ({origins} at the source)" if origins else str(table)


def entry_as_json(entry: ErrorEntry, pipeline: Pipeline | Publication) -> dict[str, Any]:
    """An entry without its changes."""
    plain = asdict(entry)
    plain["error_type"] = entry.error_type
    plain["state"] = "held" if entry.is_held else "failed"
    plain["table"] = str(entry.table) if entry.table else None
    plain["source_table"] = _source_table(entry.table, pipeline)
    return plain


def shown_as_json(found: ShownEntry, pipeline: Pipeline | Publication) -> dict[str, Any]:
    """An entry whole; `entry_edits.by_form` reads it again."""
    changes = [_change(number, current, pipeline) for number, current in enumerate(found.current_rows, start=1)]
    return {**entry_as_json(found.entry, pipeline), "changes": changes}


def _change(number: int, current: CurrentRow, pipeline: Pipeline | Publication) -> dict[str, Any]:
    change = current.change
    return {
        "number": number,
        "op": change.op.value,
        "table": str(change.table),
        "source_table": _source_table(change.table, pipeline),
        "before": None if change.before is None else dict(change.before),
        "after": None if change.after is None else dict(change.after),
        "now": None if current.now is None else dict(current.now),
        "differing": list(current.differing),
        "in_the_way": {name: dict(row) for name, row in current.in_the_way.items()},
    }


def _source_table(table: TableName | None, pipeline: Pipeline | Publication) -> str | None:
    return None if table is None else ", ".join(map(str, pipeline.origins(table))) or str(table)


def print_entries(entries: Sequence[ErrorEntry], pipeline: Pipeline | Publication) -> None:
    """Print entries for a person: what failed in one line, why in the next ones."""
    width = max(len(entry.id) for entry in entries)
    for entry in entries:
        at = short_time(entry.committed_at) if entry.committed_at else "time unknown"
        number = entry.error_number or entry.error_code
        change = "its commit" if not entry.message_number else f"change {entry.message_number} of {entry.message_count}"
        of = f"{entry.op} {named(entry.table, pipeline)}" if entry.table else count(entry.message_count, "change")
        failed = entry.state if entry.is_held else f"{change}, error {number}" if number else change
        print_with_margin(f"{entry.id:<{width}}  {at}  ", printable(f"{of}, {failed}"))
        for text in (None if entry.is_held else entry.error_message, _hold(entry)):
            if text:
                print_with_margin(" " * (width + 2), printable(text))


def _hold(entry: ErrorEntry) -> str:
    """By whom an entry was put on hold, when and why; empty where it was not."""
    hold = entry.on_hold
    return "" if hold is None else f"on hold since {short_time(hold.at)} by {hold.by}: {hold.note}"


def print_action(action: PastAction) -> None:
    """Print what somebody did with an entry: what and who in one line, edits and errors below."""
    role = f" as {action.role}" if action.role not in (None, action.db_user) else ""
    who = f"{action.db_user}{role} ({action.os_user} on {action.host})"
    say_wrapped(printable(f"{short_time(action.at)}  {action.action} {action.entry_id}: {action.outcome}, by {who}"))
    for text in filter(None, (" ".join(action.edits), action.error_message, action.note)):
        print_with_margin(" " * 16, printable(text))


def print_entry(found: ShownEntry, pipeline: Pipeline | Publication) -> None:
    """Print an entry and, change by change, old and new values beside the row at the target now."""
    entry = found.entry
    codes = f"{entry.error_number or ''} {f'({entry.error_code})' if entry.error_code else ''}".strip()
    print_facts(
        [
            ("id", entry.id),
            ("transaction", f"{entry.txn_id}, position {entry.commit_scn}, of {printable(entry.source)}"),
            ("committed at", time_text(entry.committed_at) if entry.committed_at else "unknown"),
            ("state", entry.state),
            ("waits since" if entry.is_held else "failed at", time_text(entry.created_at)),
            ("as", printable(entry.recipient or "unknown")),
            ("error", "" if entry.is_held else f"{codes} {entry.error_type}".strip()),
            ("message", printable(entry.error_message)),
            *([("on hold", printable(_hold(entry).removeprefix("on hold ")))] if entry.on_hold else []),
        ]
    )
    for number, current in enumerate(found.current_rows, start=1):
        is_failed = number == entry.message_number
        of = _document(current) or named(current.change.table, pipeline)
        say(f"{'->' if is_failed else '  '} {number} {current.change.op} {of}")
        if current.change.op is Op.GAP:
            # It is no row: what it says is the reason, whole.
            told = current.change.before or {}
            say(f"       {printable(told.get('reason') or '')}")
            if "rule" in told:
                # The change as it is at the source.
                for name in ("operation", "old", "new"):
                    say(f"       {name} {printable(told.get(name) or 'none')}")
        else:
            _print_values(current)
        if is_failed and entry.found is not None:
            say("       when it failed, the target held")
            _print_row(entry.found)
        for name, row in current.in_the_way.items():
            say(f"       in the way now, by {printable(name)}")
            _print_row(row)


def _document(current: CurrentRow) -> str | None:
    """The document that cannot be read, where that is what a change is about, and not a table."""
    name = (current.change.before or {}).get("document") if current.change.op is Op.GAP else None
    return None if name is None else f"of document {printable(name)}"


def _print_values(current: CurrentRow) -> None:
    if not current.has_table:
        say("       the target has no such table")
    if not current.columns:
        return
    images = current.images
    most = _room(current)
    cells = [
        ["", "column", *images],
        *([_mark(name, current), printable(name), *_cells(name, images, most)] for name in current.columns),
    ]
    widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]))]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say(f"     {line}".rstrip())
    if current.finds_no_row:
        say("       the target holds no row with its key now")
    elif current.differing:
        say(f"     ! {count(len(current.differing), 'column')} not as the change expects")


def _mark(name: str, current: CurrentRow) -> str:
    return "!" if name in current.differing else ""


def _room(current: CurrentRow) -> int:
    """How many characters a value may take for its line to fit the terminal."""
    if not out.is_terminal:
        return _WIDEST
    names = 10 + max(len("column"), *(len(printable(name)) for name in current.columns))
    # Behind each value stand two quotes, three dots and two spaces.
    return min(_WIDEST, max(_NARROWEST, (out.width - names) // len(current.images) - 7))


def _cells(name: str, images: Mapping[str, Image], most: int) -> list[str]:
    return [_short(image[name], most) if name in image else "" for image in images.values()]


def _print_row(row: Image) -> None:
    for name, value in row.items():
        say(f"         {printable(name)}: {_short(value)}")


def _short(value: str | None, most: int = _WIDEST) -> str:
    if value is None or len(value) <= most:
        return shown(value)
    if most < _WIDEST:
        return f"{shown(value[:most])}..."
    return f"{shown(value[:most])}... ({count(len(value), 'character')})"
