"""`penstock errors`: the error queue."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.console import (
    FileOption,
    JsonOption,
    as_text,
    open_file,
    out,
    print_json,
    print_rows,
    say,
    say_wrapped,
    warn,
)
from penstock.cli.error_options import (
    ID_HELP,
    AllOption,
    AttemptOptions,
    EditOptions,
    EntryOptions,
    IdArgument,
    IdsArgument,
)
from penstock.cli.error_results import apply_entries, result_of, skipped_text, tell
from penstock.cli.groups import takes_groups
from penstock.errors import ConfigError
from penstock.text import count, printable

if TYPE_CHECKING:
    from penstock.apply.entry_edits import EntryEdit
    from penstock.apply.error_queue import ErrorEntry
    from penstock.pipeline.errors import ErrorFilter, Errors
    from penstock.pipeline.pipeline import Pipeline
    from penstock.pipeline.publication import Publication
    from penstock.pipeline.published_queue import PublishedQueue

app = typer.Typer(
    help="See, edit, retry, hold and delete the transactions that could not be applied, or published.",
    no_args_is_help=True,
)

_NOTHING_THERE = "the error queue is empty"
_NOTHING_FITS = "no entry of the error queue fits"

_SHOWN = 100
"""So many entries are listed for a person who does not say how many."""


@app.command("list")
@takes_groups
def list_(
    meant: EntryOptions = EntryOptions(),
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help=f"The maximum number to list; {_SHOWN} by default, all with --json."),
    ] = None,
    on_hold: Annotated[bool, typer.Option("--on-hold", help="Only entries that are on hold.")] = False,
    in_short: Annotated[bool, typer.Option("--summary", help="Only count them by error, table and operation.")] = False,
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """List the error queue, in commit order."""
    from penstock.cli.error_view import entry_as_json, print_entries
    from penstock.pipeline.error_sums import summary
    from penstock.pipeline.errors import ErrorFilter

    wanted = replace(meant.filter, on_hold=True if on_hold else None)
    pipeline = open_file(file)
    entries = pipeline.errors().entries(wanted)
    if json and in_short:
        print_json(summary(entries))
    elif json:
        print_json([entry_as_json(entry, pipeline) for entry in entries[:limit]])
    elif not entries:
        say(_NOTHING_THERE if wanted == ErrorFilter() else _NOTHING_FITS)
    elif in_short:
        print_rows(
            ["entries", "error", "type", "table", "operation", "from", "to"],
            [
                [
                    f"{row['entries']:,}",
                    row["error_number"] or row["error_code"] or row["state"],
                    row["error_type"] or "",
                    row["table"] or "",
                    row["op"] or "",
                    row["first_id"],
                    row["last_id"],
                ]
                for row in summary(entries)
            ],
        )
    else:
        shown = entries[: limit or _SHOWN]
        if out.is_terminal:
            print_entries(shown, pipeline)
        else:
            _print_table(shown, pipeline)
        if len(shown) < len(entries):
            say_wrapped(
                f"and {len(entries) - len(shown):,} more; --summary counts them by error and table, --limit shows more"
            )


def _print_table(entries: Sequence[ErrorEntry], pipeline: Pipeline | Publication) -> None:
    """Print entries for a program in a pipe: a line each, times in full."""
    from penstock.cli.error_view import named

    print_rows(
        ["id", "state", "committed at", "failed change", "operation", "error", "type", "message"],
        [
            [
                e.id,
                e.state,
                as_text(e.committed_at) if e.committed_at else "",
                f"{'-' if e.is_held else e.message_number}/{e.message_count}",
                f"{e.op} {named(e.table, pipeline)}" if e.table else "",
                e.error_number or e.error_code or "",
                e.error_type or "",
                "" if e.is_held else printable(e.error_message),
            ]
            for e in entries
        ],
    )


@app.command()
def show(entry_id: IdArgument, file: FileOption = None, json: JsonOption = False) -> None:
    """Show one transaction: which change failed and why, and each change beside the row at the target now."""
    from penstock.cli.error_view import print_entry, shown_as_json

    pipeline = open_file(file)
    found = pipeline.errors().show(entry_id)
    print_json(shown_as_json(found, pipeline)) if json else print_entry(found, pipeline)


@app.command()
@takes_groups
def retry(
    entry_id: IdsArgument = None,
    every: AllOption = False,
    meant: EntryOptions = EntryOptions(),
    go_on: Annotated[bool, typer.Option("--go-on", help="Continue after one that fails again.")] = False,
    attempt: AttemptOptions = AttemptOptions(),
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Apply transactions again, in commit order; stops at the first that fails again. Those on hold are skipped."""
    wanted = meant.filter
    _refuse_unclear(entry_id, wanted, every=every)
    pipeline = open_file(file)
    edit = _function(attempt.function, pipeline)
    chosen = _Chosen.of(pipeline.errors(), entry_id, wanted)
    options = attempt.options(edit, go_on=go_on)
    apply_entries(pipeline, chosen.ids, options, skip_gone=not entry_id, on_hold=chosen.on_hold, json=json)


@app.command()
@takes_groups
def edit(
    entry_id: IdArgument,
    edits: EditOptions = EditOptions(),
    form: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="JSON as `show --json` prints it, edited; - reads it.")
    ] = None,
    attempt: AttemptOptions = AttemptOptions(),
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Apply one transaction with other values, or without some of its changes.

    Without options it opens $VISUAL or $EDITOR. What is edited holds for this one try: if it fails, the entry stays as
    the source committed it.
    """
    from penstock.apply.entry_edits import by_form, by_settings

    settings = edits.settings
    ways = [bool(settings or edits.skip), form is not None, attempt.function is not None]
    if sum(ways) > 1:
        raise ConfigError("edit in one way only: by --set, --null, --unset and --skip, or by --from, or by --with")
    pipeline = open_file(file)

    def apply(edit: EntryEdit) -> None:
        apply_entries(pipeline, [entry_id], attempt.options(edit), json=json)

    if form is not None:
        apply(by_form(_read(form)))
    elif any(ways):
        apply(_function(attempt.function, pipeline) or by_settings(settings, edits.skip or ()))
    else:
        from penstock.cli.editor import edited

        with edited(pipeline, entry_id, keep=attempt.dry_run) as text:
            if text is None:
                say("nothing was edited, and nothing applied") if not json else print_json(result_of([]))
            else:
                apply(by_form(text))


@app.command()
@takes_groups
def delete(
    entry_id: IdsArgument = None,
    every: AllOption = False,
    meant: EntryOptions = EntryOptions(),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Give transactions up: remove them from the queue without applying them. Those on hold are skipped."""
    wanted = meant.filter
    _refuse_unclear(entry_id, wanted, every=every)
    pipeline = open_file(file)
    queue = pipeline.errors()
    chosen = _Chosen.of(queue, entry_id, wanted)
    skipped = skipped_text(len(chosen.on_hold))
    if not entry_id and chosen.ids and not yes:
        if json or not sys.stdin.isatty():
            raise ConfigError("cannot ask whether to give transactions up: there is no terminal", do="say --yes")
        names = ", ".join(chosen.ids)
        typer.confirm(f"give up {count(len(chosen.ids), 'transaction')}: {names}{skipped}?", abort=True)
    deleted = queue.delete(*chosen.ids, skip_gone=not entry_id)
    if not json and chosen.is_empty:
        say(_NOTHING_THERE if every else _NOTHING_FITS)
    elif not json:
        say(f"deleted {count(len(deleted), 'transaction')}, never to be applied{skipped}")
    # What has waited for one of them waits no more.
    _go_on(pipeline, {"deleted": deleted, "on_hold": chosen.on_hold}, json=json)


@app.command()
@takes_groups
def hold(
    entry_id: IdsArgument = None,
    every: AllOption = False,
    meant: EntryOptions = EntryOptions(),
    note: Annotated[str, typer.Option("--note", help="Why; `errors list`, `errors show` and the page show it.")] = "",
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Put transactions on hold: nobody applies or deletes them until they are released."""
    wanted = meant.filter
    _refuse_unclear(entry_id, wanted, every=every)
    checked_note = _checked_note(note)
    queue = open_file(file).errors()
    chosen = _Chosen.of(queue, entry_id, wanted)
    held = queue.hold(*chosen.ids, note=checked_note, skip_gone=not entry_id)
    if json:
        print_json({"on_hold": held, "skipped": chosen.on_hold})
    elif chosen.is_empty:
        say(_NOTHING_THERE if every else _NOTHING_FITS)
    else:
        already = f"; {len(chosen.on_hold):,} already on hold" if chosen.on_hold else ""
        say(f"put {count(len(held), 'transaction')} on hold{already}")


@app.command()
@takes_groups
def release(
    entry_id: IdsArgument = None,
    every: AllOption = False,
    meant: EntryOptions = EntryOptions(),
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """End the hold of transactions, so that they can be applied and deleted again."""
    wanted = meant.filter
    _refuse_unclear(entry_id, wanted, every=every)
    pipeline = open_file(file)
    queue = pipeline.errors()
    chosen = entry_id or [entry.id for entry in queue.entries(replace(wanted, on_hold=True))]
    released = queue.release(*chosen, skip_gone=not entry_id)
    if not json:
        others = f"; {len(chosen) - len(released):,} not on hold" if len(chosen) > len(released) else ""
        say(f"released {count(len(released), 'transaction')}{others}")
    # What one of them waited for may be gone.
    _go_on(pipeline, {"released": released}, json=json)


def _checked_note(note: str) -> str:
    from penstock.pipeline.errors import checked_note

    return checked_note(note)


def _go_on(pipeline: Pipeline | Publication, done: dict[str, Any], *, json: bool) -> None:
    """Apply what waits for nothing any more, and say so behind what was done."""
    went_on = []
    for one in pipeline.go_on(lambda text: warn(f"note: {printable(text)}")):
        went_on.append(one)
        if not json:
            tell(one, is_last_word=False)
    if json:
        print_json({**done, **({"went_on": result_of(went_on)} if went_on else {})})
    if any(one.is_failed for one in went_on):
        raise typer.Exit(3)


@app.command()
def history(
    entry_id: Annotated[str | None, typer.Argument(metavar="ID", help=f"Only of one entry. {ID_HELP}")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The maximum number to list: the last ones.")] = 100,
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """List what people did with the error queue: who, when, what, and the outcome."""
    from penstock.cli.error_view import print_action

    actions = open_file(file).errors().history(entry_id, most=limit)
    if json:
        print_json([asdict(action) for action in actions])
    elif not actions:
        say("nothing was done yet")
    else:
        if out.is_terminal:
            for a in actions:
                print_action(a)
            return
        print_rows(
            ["at", "who", "did", "entry", "outcome", "edited or left out", "error", "note"],
            [
                [
                    as_text(a.at),
                    printable(f"{a.db_user}{f' as {a.role}' if a.role not in (None, a.db_user) else ''}")
                    + printable(f" ({a.os_user} on {a.host})"),
                    a.action,
                    a.entry_id,
                    a.outcome,
                    printable(" ".join(a.edits)),
                    printable(a.error_message or ""),
                    printable(a.note or ""),
                ]
                for a in actions
            ],
        )


@dataclass(frozen=True)
class _Chosen:
    """Entries to act on; and those that fit, too, but are skipped because they are on hold and were not named."""

    ids: list[str]
    on_hold: list[str]

    @classmethod
    def of(cls, queue: Errors | PublishedQueue, entry_ids: list[str] | None, wanted: ErrorFilter) -> _Chosen:
        if entry_ids:
            return cls(entry_ids, [])
        entries = queue.entries(wanted)
        return cls(
            [entry.id for entry in entries if entry.on_hold is None],
            [entry.id for entry in entries if entry.on_hold is not None],
        )

    @property
    def is_empty(self) -> bool:
        return not self.ids and not self.on_hold


def _refuse_unclear(given: list[str] | None, wanted: ErrorFilter, *, every: bool) -> None:
    from penstock.pipeline.errors import ErrorFilter

    if sum([bool(given), every, wanted != ErrorFilter()]) != 1:
        raise ConfigError(
            "name the transactions by ids, by --all, or by what they have in common (--table, --error, --since ...)"
        )


def _function(name: str | None, pipeline: Pipeline | Publication) -> EntryEdit | None:
    from penstock.apply.entry_edits import by_function
    from penstock.user_code import load

    if name is None:
        return None
    try:
        return by_function(load(name, pipeline.config.capture.folder), name)
    except Exception as exc:
        what = f"{type(exc).__name__}: {exc}"
        raise ConfigError(
            f"--with: cannot load {name!r}: {what}",
            do="name a function as module:function, in a module beside the pipeline file or one that is installed",
        ) from exc


def _read(form: Path) -> str:
    try:
        return sys.stdin.read() if str(form) == "-" else form.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        what = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read --from {str(form)!r}: {what}") from exc
