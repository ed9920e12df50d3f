"""docs/messages.md: every message that the code raises on purpose, by area, with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from scripts.reference.raised import VALUE, Message, messages

from penstock import errors
from penstock.apply import apply_errors

ROOT = Path(__file__).resolve().parents[2]
CODE = ROOT / "src/penstock"
PAGE = ROOT / "docs/messages.md"
NOTES = Path(__file__).with_name("notes.yaml")

# The first area with a beginning of the file's path is the message's.
AREAS = (
    ("DbWatcher messages", ("formats/dbwatcher", "sinks/dbwatcher", "sources/dbwatcher")),
    ("Moving over from xmlBlaster", ("xmlblaster", "cli/import_xmlblaster")),
    ("Event logs and XDS", ("formats/xds", "sinks/xds", "sources/event_log", "sources/xds")),
    ("Event logs and XDS", ("dialects/postgres/source/event_log", "dialects/postgres/source/event_journal")),
    ("Db2's log", ("sources/db2_log", "cli/db2_collect", "cli/decode_db2")),
    ("Debezium and Kafka", ("formats/debezium", "sources/debezium", "sinks/events", "kafka", "schema_registry")),
    ("Change files", ("archive", "formats/", "sinks/archive", "sources/change_files", "sources/numbered", "storage")),
    ("The pipeline file", ("config/", "pipeline_file", "wiring", "patterns", "sources/declared")),
    ("Transforming rows", ("rules/",)),
    ("Handlers", ("apply/handlers", "dialects/postgres/target/handler_sql", "pipeline/handlers", "user_code")),
    ("The error queue, and how it is worked off", ("apply/retry", "apply/entry_", "cli/err", "cli/editor")),
    ("Applying changes", ("apply/", "dialects/postgres/target/ddl", "dialects/postgres/target/external")),
    ("First copy, verify and resync", ("snapshot/", "verify/", "pipeline/resync", "pipeline/verification", "cli/res")),
    ("PostgreSQL", ("dialects/", "database")),
    ("Spark", ("spark/", "worker_daemon", "sources/trigger_queue/source", "sources/trigger_queue/position")),
    ("Commands", ("cli/", "demo/", "init/")),
    ("Setting up and running", ("pipeline/",)),
    ("Anything else", ("",)),
)

# What most readers look for comes first.
FIRST = ("The pipeline file", "PostgreSQL", "Setting up and running", "Applying changes", "The error queue, and how it")

# What to do where neither the message nor a note says more.
BY_KIND = {
    "ConfigError": "Correct the setting or option that the message names. Nothing was touched.",
    "MalformedInputError": "What was read breaks its own format at the place that the message names. Look there.",
    "RetryableError": "Run the command again. A run tries again by itself.",
    "FencedError": "Another run has taken over, and this one has stopped. Let one run at a time work.",
    "OperatorError": "Change what the message names, then run the command again.",
    "PenstockError": "This is a fault of Penstock's own: report it, with `PENSTOCK_TRACEBACK=1` set.",
}
# The same for an error of a change, by its number in the error queue.
BY_NUMBER = {
    1: "Another row of the target has these values. Move it away, or let a [rule](conflicts.md) decide; then retry.",
    60: "Other sessions kept blocking it: retry when they are done.",
    942: "Run `penstock setup`, which makes the table or says why it cannot; then retry.",
    1400: "The target's column takes no NULL: let it, or `penstock errors edit ID` with a value; then retry.",
    1422: "Give the table a key at the target, or one of your own: see [keys](pipeline-file.md#keys-of-your-own).",
    1722: "The target's column cannot hold the value: alter its type, or `penstock errors edit ID`; then retry.",
    2290: "A check or a partition bound of the target refuses the row: alter it, or edit the entry; then retry.",
    2291: "The parent is missing: an earlier entry may hold it. Apply that one first, then retry.",
    2292: "Rows of another table depend on it: an earlier entry may delete them. Apply that one first, then retry.",
    12899: "Make the target's column wider, or `penstock errors edit ID`; then retry.",
    20000: "Fix the [handler](handlers.md), then retry.",
    20001: "Make the [handler](handlers.md) faster, or raise `apply.handlers.timeout_s`; then retry.",
    20002: "A [handler](handlers.md#what-a-handler-may-not-do) may not run this: take it out, then retry.",
    23605: "Fix the [handler](handlers.md#functions): the change it made is none; then retry.",
    23607: "Fix the [handler](handlers.md#functions): it names a column that the change lacks; then retry.",
    26688: "The source did not log the value. Let it log whole rows, `penstock resync TABLE`, delete the entry.",
    26689: "Make the target's column as it was when the change was captured, or run `penstock setup`; then retry.",
    26690: "There is nothing to apply: retry without this change, then `penstock resync TABLE`.",
    26691: "Alter the target's table as the message says, then `penstock errors retry ID`.",
    26694: "Name a function in [`apply.handlers.message`](handlers.md#messages), then retry.",
}
# The same for what was read, where the area has a page that says what becomes of it.
MALFORMED = {
    "DbWatcher messages": "The message is refused whole: [what becomes of it](dbwatcher.md#messages-that-are-refused).",
    "Event logs and XDS": "The row or document is left out: [what becomes of it](event-log.md#what-becomes-of-rows).",
    "Db2's log": "The buffers are damaged, or not whole: [which are taken](db2.md#whether-a-transaction-is-whole).",
    "Change files": "A file was altered or damaged: bring it back from a copy, or publish anew to another path.",
    "Debezium and Kafka": "The record is not a connector's event; `capture.debezium.on_malformed: skip` leaves it out.",
}
HISTORY = (
    "Bring back what the message names; where that cannot be done, `penstock resync --all` prepares a new first copy."
)
IN_THE_FILE = "Correct the setting that the message names. Nothing was touched."
IN_THE_WAY = "`penstock plan` lists it as an obstacle: change it at the target, then run `penstock setup` again."

HEAD = """\
# Messages

Look for the first words of a message, with the search field or with the browser: `…` stands for a name, a number or a
reason of the case. The column *code* is the command's [exit code](cli.md#exit-codes), or the [error
number](postgresql.md#error-numbers) of an entry of the error queue. [Troubleshooting](troubleshooting.md) begins with
what you see instead.

`scripts/write-reference` makes this page from the code. Advice is the message's own, in a few words more where that
helps.
"""


@dataclass(frozen=True)
class Entry:
    """A row of the page: a message, its code, and what to do."""

    what: str
    code: str
    do: str


def page() -> str:
    """The text of the page."""
    lines = [HEAD]
    for area, found in entries().items():
        lines += [f"## {area}", "", "| message | code | what to do |", "| --- | --- | --- |"]
        lines += [f"| {_code(entry.what)} | {entry.code} | {_cell(entry.do)} |" for entry in found]
        lines.append("")
    return "\n".join(lines)


def entries() -> dict[str, list[Entry]]:
    """The rows of each area, in the order of their words."""
    notes = yaml.safe_load(NOTES.read_text(encoding="utf-8"))
    areas = sorted((area for area, _ in AREAS), key=lambda area: not area.startswith(FIRST))
    by_area: dict[str, dict[tuple[str, str], list[Message]]] = {area: {} for area in areas}
    for message in messages(CODE).messages:
        if is_told(message):
            by_area[area_of(message)].setdefault((message.what, code_of(message)), []).append(message)
    return {
        area: [
            Entry(what, code, advice(what, said, notes, area))
            for (what, code), said in sorted(found.items(), key=_order)
        ]
        for area, found in by_area.items()
        if found
    }


def is_told(message: Message) -> bool:
    """Whether a text has words of its own, or else advice; one of names alone is another message's."""
    words = len(re.findall(r"[a-zA-Z]{2,}", message.what))
    return words > 1 or (words == 1 and bool(message.do)) or message.what == "cannot …: …"


def area_of(message: Message) -> str:
    """The part of the page that a message is in, by where it is raised first."""
    return next(area for area, begins in AREAS if message.files[0].startswith(begins))


def code_of(message: Message) -> str:
    """The error number of a change's error, otherwise the exit code."""
    if message.kind == "ApplyError":
        number = getattr(apply_errors, message.number, None)
        return "0" if number is None else str(number)
    if message.kind in ("Fault", "ValueError"):
        return "2"
    if message.kind == "fault":
        return "3" if message.files[0].startswith("dialects/") else "2"
    return str(getattr(errors, base_of(message.kind)).exit_code)


def base_of(kind: str) -> str:
    """The class of `penstock.errors` that decides what a caller can do."""
    if hasattr(errors, kind):
        return kind
    above = {
        "ChoiceError": "ConfigError",
        "LockedError": "RetryableError",
        "NotRegisteredError": "MalformedInputError",
    }
    return above.get(kind, "OperatorError")


def advice(what: str, said: Iterable[Message], notes: Mapping[str, str], area: str) -> str:
    """What to do: by a note whose words the message begins with, by its own words, or by its kind."""
    for words, note in notes.items():
        if what.startswith(words):
            return note
    own = list(dict.fromkeys(do for message in said if len(do := message.do.strip(f"{VALUE}:;., ")) > 1))
    own = [re.sub(r"^(pip install \S+)$", r"run `\1`", do) for do in own]
    if own:
        # A server's reason decides which of several it is.
        return "; or: ".join(own)[0].upper() + "; or: ".join(own)[1:] + "."
    kind = next(iter(said)).kind
    number = getattr(apply_errors, next(iter(said)).number, 0)
    if kind == "ApplyError" and number in BY_NUMBER:
        return BY_NUMBER[number]
    if kind == "ApplyError":
        return "`penstock errors show` shows the change beside the row; [what to do](cli.md#what-to-do-with-an-entry)."
    if kind in ("Fault", "fault", "ValueError"):
        return IN_THE_WAY if area == "PostgreSQL" else IN_THE_FILE
    if kind == "HistoryError":
        return HISTORY
    base = base_of(kind)
    if base == "MalformedInputError" and area in MALFORMED:
        return MALFORMED[area]
    return BY_KIND.get(base, BY_KIND["OperatorError"])


def pattern(what: str) -> re.Pattern[str]:
    """What a message of the page looks like with its values."""
    parts = re.split(rf"{VALUE}+", what)
    return re.compile(".*".join(map(re.escape, parts)), re.S)


def _order(found: tuple[tuple[str, str], object]) -> tuple[str, str]:
    what, code = found[0]
    return what.lstrip(VALUE + " :,").lower(), code


def _code(what: str) -> str:
    """A message as code in a cell."""
    text = re.sub(rf"{VALUE}+", VALUE, " ".join(what.split())).replace("|", "\\|")
    fence = "``" if "`" in text else "`"
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _cell(do: str) -> str:
    """Advice in a cell: what Markdown would take for markup, outside of code, is text."""
    text = re.sub(rf"{VALUE}+", VALUE, " ".join(do.split())).replace("|", "\\|").replace("..", ".")
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<]|\b_|_\b)", r"\\\1", part) for part in parts)
