"""Small pieces of HTML for notebooks: every text in them is escaped, and they bring no script and no style sheet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from penstock.text import printable

_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"
_MARKED = f"{_CELL};font-weight:bold;color:#b3261e"
_MOST_ROWS = 200


def heading(text: object) -> str:
    """A line above what follows."""
    return f"<div style='margin:6px 0 2px;font-weight:bold'>{_escaped(text)}</div>"


def note(text: object) -> str:
    """A line of text."""
    return f"<div style='margin:2px 0'>{_escaped(text)}</div>"


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values, one pair a line."""
    rows = "".join(
        f"<tr><th style='{_CELL}'>{_escaped(name)}</th><td style='{_CELL}'>{_escaped(value)}</td></tr>"
        for name, value in pairs
    )
    return f"<table>{rows}</table>"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, marked: Iterable[tuple[int, int]] = ()) -> str:
    """A table of at most 200 rows; it says how many more there are.

    Args:
        marked: Rows and columns, from 0, of cells that stand out.
    """
    stand_out = set(marked)
    lines = ["<tr>" + "".join(f"<th style='{_CELL}'>{_escaped(head)}</th>" for head in heads) + "</tr>"]
    for n, row in enumerate(rows[:_MOST_ROWS]):
        cells = (
            f"<td style='{_MARKED if (n, m) in stand_out else _CELL}'>{_escaped(cell)}</td>"
            for m, cell in enumerate(row)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    more = note(f"... and {len(rows) - _MOST_ROWS:,} more") if len(rows) > _MOST_ROWS else ""
    return f"<table>{''.join(lines)}</table>{more}"


def _escaped(value: object) -> str:
    """A value as text that a browser shows and does not read; a line break stays one."""
    lines = ("" if value is None else str(value)).split("\n")
    return "<br>".join(escape(printable(line), quote=True) for line in lines)
