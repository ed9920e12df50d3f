"""The templates, and what of a page is sent again each time something was seen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from penstock import __version__
from penstock.change import Op, TableName
from penstock.web import words
from penstock.web.samples import SPANS
from penstock.web.watcher import Sighting, Watcher

FOLDER = Path(__file__).parent

PARTS = ("headline", "picture", "tables", "work", "consumers", "conflicts")
"""The parts of a pipeline's page that change while it is open; each is a template of its own, and an element's id."""


_MOST_TABLES = 200
"""So many rows are shown, however many tables there are."""


def environment() -> Environment:
    """Open the templates; whatever they print is escaped, whatever it is called."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        # An upgrade of the package under a running server changes no page of it by halves.
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {**words.FILTERS, "code": with_code}
    made.globals |= {"version": __version__, "spans": SPANS, "state_of": words.state_of}
    return made


def with_code(text: str) -> Markup:
    """A message with what people type, which stands between backticks in it, as such; all of it is escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )


class Renderer:
    """Makes HTML of what was seen, once for all who watch."""

    def __init__(self) -> None:
        """Read the templates when they are first asked for."""
        self._environment = environment()
        self._made: dict[tuple[str, bool], tuple[Sighting, dict[str, str]]] = {}

    def set(self, name: str, value: object) -> None:
        """Let all templates know a value."""
        self._environment.globals[name] = value

    def page(self, template: str, **values: Any) -> str:
        """Fill a template."""
        return self._environment.get_template(template).render(**values)

    def parts(self, watcher: Watcher, seen: Sighting | None) -> dict[str, str]:
        """Return the parts of a pipeline's page, by the ids of their elements."""
        values = shown(watcher, seen)
        return {name: self.page(f"parts/{name}.html", **values) for name in PARTS}

    def card(self, watcher: Watcher, seen: Sighting | None) -> str:
        """Return a pipeline as one of several."""
        return self.page("parts/card.html", **shown(watcher, seen))

    def event(self, watcher: Watcher, seen: Sighting, sent: dict[str, str], *, as_card: bool) -> str:
        """Return what was seen as an event for the page's script.

        Args:
            sent: The parts that the page has; what is new is added.
        """
        parts = self._parts(watcher, seen, as_card=as_card)
        new = {name: html for name, html in parts.items() if sent.get(name) != html}
        sent |= new
        plain = {"pipeline": watcher.name, "sample": seen.sample.to_json(), "parts": new}
        return f"event: seen\ndata: {json.dumps(plain, separators=(',', ':'))}\n\n"

    def _parts(self, watcher: Watcher, seen: Sighting, *, as_card: bool) -> dict[str, str]:
        key = watcher.name, as_card
        made = self._made.get(key)
        if made is None or made[0] is not seen:
            parts = {f"card-{watcher.name}": self.card(watcher, seen)} if as_card else self.parts(watcher, seen)
            made = self._made[key] = seen, parts
        return made[1]


def shown(watcher: Watcher, seen: Sighting | None) -> dict[str, Any]:
    """What the templates of a pipeline's parts draw from."""
    observation = None if seen is None else seen.observation
    status = None if observation is None else observation.status
    before = None if seen is None else seen.before
    config = watcher.config
    tables = [] if seen is None else table_rows(watcher, seen)
    return {
        "name": watcher.name,
        "base": f"/p/{watcher.name}",
        "seen": observation,
        "status": status,
        "detail": None if observation is None else observation.detail,
        "state": words.state_of(observation),
        "copying": words.copy_progress(observation),
        "problems": [] if observation is None else words.problems_of(observation),
        "consistent": "" if status is None else words.consistent(status),
        "rate": None if observation is None else words.rate(observation, before),
        "source": config.capture.name,
        "target": status.publishes_to if status is not None and status.publishes_to else target_of(watcher),
        "tables": tables,
        "ops": op_columns(tables),
        "most_tables": _MOST_TABLES,
        "every_s": 0 if seen is None else seen.every_s,
    }


def target_of(watcher: Watcher) -> str:
    """The connection that a pipeline applies to, or what it publishes to."""
    apply, publish = watcher.config.apply, watcher.config.publish
    return apply.connection if apply is not None else str(publish.form if publish is not None else "")


@dataclass(frozen=True)
class TableRow:
    """A table as the page lists it.

    Attributes:
        copied: `copied`, `copying` or `waits`; empty where nobody knows.
        changes: How many changes all runs have applied, by operation; of a pipeline that publishes, what the run has
            published that the page is served beside.
        changed_at: When changes of it were last seen to be applied.
    """

    table: str
    copied: str = "waits"
    chunks: int = 0
    chunks_copied: int = 0
    changes: Mapping[str, int] = field(default_factory=dict)
    errors: int = 0
    conflicts: int = 0
    changed_at: datetime | None = None


@dataclass(frozen=True)
class OpColumn:
    """A column of the list of tables: changes by one operation, or by all that have none of their own."""

    title: str
    op: Op | None

    def of(self, row: TableRow) -> int:
        """How many there were."""
        if self.op is not None:
            return row.changes.get(self.op, 0)
        return sum(number for op, number in row.changes.items() if op not in _OWN_COLUMN)


_OWN_COLUMN = (Op.INSERT, Op.UPDATE, Op.DELETE)


def op_columns(rows: Sequence[TableRow]) -> list[OpColumn]:
    """The columns that tell of changes; that of other operations only where there were any."""
    others = OpColumn("Others", None)
    return [
        *(OpColumn(f"{op.value.capitalize()}s", op) for op in _OWN_COLUMN),
        *([others] if any(map(others.of, rows)) else []),
    ]


def table_rows(watcher: Watcher, seen: Sighting) -> list[TableRow]:
    """A row for each table: those that have errors or no copy yet come first."""
    status, detail = seen.observation.status, seen.observation.detail
    rows = [
        TableRow(
            str(one.table),
            "copied" if one.is_copied else "waits" if one.copied_at is None else "copying",
            one.chunks,
            one.chunks_copied,
            one.changes,
            one.errors,
            one.conflicts,
            watcher.changed_at.get(one.table),
        )
        for one in (detail.tables if detail is not None else ())
    ]
    if detail is None:
        rows = _published(watcher, seen)
    known = {row.table for row in rows}
    waiting = map(str, status.waiting if status is not None else ())
    rows += [TableRow(table) for table in waiting if table not in known]
    return sorted(rows, key=lambda row: (row.errors == 0, row.copied == "copied", row.table))


def _published(watcher: Watcher, seen: Sighting) -> list[TableRow]:
    """A row for each table of which the run beside the page has published changes, or the error queue holds any."""
    changes = {} if watcher.run is None else watcher.run.by_table()
    errors: Counter[TableName] = Counter()
    for one in seen.observation.queued:
        if one.table is not None:
            errors[one.table] += one.entries
    return [
        TableRow(str(table), "", changes=changes.get(table, {}), errors=errors[table])
        for table in changes.keys() | errors.keys()
    ]
