"""How a pipeline's values look in a notebook: the same facts that the commands print, as HTML.

No secret is in them: places are named as in messages. Row values are where somebody has asked for a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from penstock import html
from penstock.apply.entry_rows import CurrentRow
from penstock.apply.error_queue import ErrorEntry
from penstock.database import DatabasePlan
from penstock.text import count, duration

if TYPE_CHECKING:
    from penstock.pipeline.plan import Plan
    from penstock.pipeline.status import Status


def status_html(status: Status) -> str:
    """The consistency point first, then what is in the way of it."""
    lag = "unknown" if status.lag_s is None else duration(status.lag_s)
    facts: list[tuple[str, object]] = [
        ("pipeline", f"{status.pipeline}, {status.state}"),
        ("consistent up to", _time(status.consistent_at) or "not yet"),
        ("lag", lag),
        ("waiting", count(status.backlog_changes, "change")),
        ("in the error queue", count(status.consistent_but_for, "transaction")),
        ("applied", f"{count(status.transactions, 'transaction')}, {count(status.changes, 'change')}"),
        ("tables", f"{status.copied} copied, {status.to_copy} to copy"),
    ]
    facts += [(name, text) for name, text in (("cannot go on", status.refused), ("stopped", status.reason)) if text]
    facts += [("source out of reach", status.source_lost)] if status.source_lost else []
    return html.facts([*facts, *(("needs attention", line) for line in status.attention)])


def plan_html(plan: Plan) -> str:
    """The verdict, and what would be done on each side."""
    lacking = len(plan.source.grants) + len(plan.target.grants)
    in_the_way = len(plan.source.faults) + len(plan.target.faults)
    if plan.is_possible:
        verdict = "everything is in place" if plan.is_done else "nothing is in the way"
    else:
        verdict = f"not ready: {count(lacking, 'privilege')} missing, {count(in_the_way, 'obstacle')}"
    lines = [html.heading(f"{count(len(plan.tables), 'table')}: {verdict}")]
    for name, side in (("source", plan.source), ("target", plan.target)):
        lines += [html.heading(f"{name}: {side.label}"), *_side(side)]
    lines += [html.note(f"{table} is left out: {'; '.join(map(str, why))}") for table, why in plan.left_out.items()]
    return "".join(lines)


def _side(side: DatabasePlan) -> list[str]:
    rows = [["step", step.summary] for step in side.steps]
    rows += [["missing privilege", f"{grant};"] for grant in side.grants]
    rows += [["in the way", str(fault)] for fault in side.faults]
    rows += [["note", text] for text in side.notes]
    return [html.table(["", "what"], rows)] if rows else [html.note("nothing to do")]


def entries_html(entries: Sequence[ErrorEntry]) -> str:
    """The error queue: what failed, and why; no row value."""
    if not entries:
        return html.note("the error queue is empty")
    heads = ["id", "state", "committed at", "change", "operation", "error", "message"]
    rows = [
        [
            entry.id,
            entry.state,
            _time(entry.committed_at),
            f"{entry.message_number}/{entry.message_count}",
            f"{entry.op or ''} {entry.table or ''}",
            entry.error_number,
            entry.error_message,
        ]
        for entry in entries
    ]
    return html.table(heads, rows)


def entry_html(entry: ErrorEntry, current: Sequence[CurrentRow]) -> str:
    """A whole transaction: of each change the old and new values beside the target's row, differing ones marked."""
    lines = [entries_html([entry])]
    for number, found in enumerate(current, 1):
        change, failed = found.change, ", which failed" if number == entry.message_number else ""
        lines.append(html.heading(f"change {number}: {change.op} {change.table}{failed}"))
        images: list[Mapping[str, str | None]] = [change.before or {}, change.after or {}, found.now or {}]
        columns = list(dict.fromkeys(name for image in images for name in image))
        rows = [[name, *(_value(image, name) for image in images)] for name in columns]
        marked = [(n, 3) for n, name in enumerate(columns) if name in found.differing]
        lines.append(html.table(["column", "old", "new", "at the target now"], rows, marked=marked))
        if found.finds_no_row:
            lines.append(html.note("the target holds no row with its key now"))
        for key, row in found.in_the_way.items():
            lines += [html.heading(f"in the way, by {key}"), html.facts([(c, _value(row, c)) for c in row])]
    return "".join(lines)


def _value(image: Mapping[str, str | None], name: str) -> str:
    if name not in image:
        return ""
    value = image[name]
    return "NULL" if value is None else repr(value)


def _time(at: datetime | None) -> str:
    return "" if at is None else at.isoformat(sep=" ", timespec="seconds")
