"""`penstock errors`: the error queue."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import (
    TIME,
    FileOption,
    JsonOption,
    as_text,
    open_file,
    out,
    parse_time,
    print_json,
    print_rows,
    say,
    say_wrapped,
    warn,
)
from penstock.cli.error_retry import apply_entries, as_json, say_outcome
from penstock.cli.groups import takes_groups
from penstock.errors import ConfigError
from penstock.text import count, printable

if TYPE_CHECKING:
    from penstock.apply.entry_edits import EntryEdit, Setting
    from penstock.apply.error_queue import ErrorEntry
    from penstock.apply.retry import RetryOptions
    from penstock.pipeline.errors import ErrorFilter, Errors
    from penstock.pipeline.pipeline import Pipeline
    from penstock.pipeline.publication import Publication
    from penstock.pipeline.published_queue import PublishedQueue

app = typer.Typer(
    help="See, edit, retry and delete the transactions that could not be applied, or published.", no_args_is_help=True
)

_NOTHING_THERE = "the error queue is empty"
_NOTHING_FITS = "no entry of the error queue fits"

_SHOWN = 100
"""So many entries are listed for a person who does not say how many."""

_ID = "As `penstock errors list` names it: shop.12, or just 12."

IdArgument = Annotated[str, typer.Argument(metavar="ID", help=_ID)]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help=_ID)]
AllOption = Annotated[bool, typer.Option("--all", help="All entries, in commit order.")]
TableOption = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="PATTERN", help="Entries that change a table like schema.table; repeatable."),
]
ErrorOption = Annotated[
    list[str] | None,
    typer.Option("--error", metavar="NUMBER", help="Entries with this error number or SQLSTATE; repeatable."),
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help=f"First failed at this time or later: {TIME}")
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="First failed at this time or earlier.")
]
TextOption = Annotated[str, typer.Option("--text", help="Entries whose error message contains this text.")]
AsMeOption = Annotated[
    bool,
    typer.Option("--as-me", help="Use the rights of the connection's user, not of the role that failed to apply it."),
]
RoleOption = Annotated[str | None, typer.Option("--role", help="Use the rights of this role at the target.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Try it, roll it back, and report the outcome.")]
WithOption = Annotated[
    str | None,
    typer.Option("--with", metavar="MODULE:FUNCTION", help="Edit each change with your own function; see docs/cli.md."),
]


@dataclass(frozen=True)
class EntryOptions:
    """Which entries are meant."""

    table: TableOption = None
    error: ErrorOption = None
    since: SinceOption = None
    until: UntilOption = None
    text: TextOption = ""

    @property
    def filter(self) -> ErrorFilter:
        """The same for the queue."""
        from penstock.patterns import TablePattern
        from penstock.pipeline.errors import ErrorFilter

        return ErrorFilter(
            tables=tuple(TablePattern.parse(pattern) for pattern in self.table or ()),
            errors=tuple(self.error or ()),
            since=parse_time(self.since, option="--since"),
            until=parse_time(self.until, option="--until"),
            text=self.text,
        )


@dataclass(frozen=True)
class AttemptOptions:
    """By whose values, and whose rights, entries are applied again."""

    function: WithOption = None
    as_me: AsMeOption = False
    role: RoleOption = None
    dry_run: DryRunOption = False

    def options(self, edit: EntryEdit | None, *, go_on: bool = False) -> RetryOptions:
        """The same for the pipeline."""
        if self.as_me and self.role is not None:
            raise ConfigError("say either --as-me, or --role")
        return {
            "mend": edit,
            "as_me": self.as_me,
            "role": self.role,
            "go_on": go_on,
            "dry_run": self.dry_run,
        }


@dataclass(frozen=True)
class EditOptions:
    """Which values of an entry are other ones."""

    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="N.IMAGE.COLUMN=TEXT", help="A value, as 2.before.price=10; repeatable."),
    ] = None
    null: Annotated[
        list[str] | None, typer.Option("--null", metavar="N.IMAGE.COLUMN", help="SQL NULL for a value; repeatable.")
    ] = None
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="N.IMAGE.COLUMN", help="Remove a column from the change; repeatable."),
    ] = None
    skip: Annotated[list[int] | None, typer.Option("--skip", metavar="N", help="Skip a change; repeatable.")] = None

    @property
    def settings(self) -> list[Setting]:
        """The values."""
        from penstock.apply.entry_edits import AbsentValue, read_place, read_setting

        return [
            *(read_setting(text, option="--set") for text in self.setting or ()),
            *(read_place(text, None, option="--null") for text in self.null or ()),
            *(read_place(text, AbsentValue.ABSENT, option="--unset") for text in self.unset or ()),
        ]


@app.command("list")
@takes_groups
def list_(
    meant: EntryOptions = EntryOptions(),
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help=f"The maximum number to list; {_SHOWN} by default, all with --json."),
    ] = None,
    in_short: Annotated[bool, typer.Option("--summary", help="Only count them by error, table and operation.")] = False,
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """List the error queue, in commit order."""
    from penstock.cli.error_view import entry_as_json, print_entries
    from penstock.pipeline.error_sums import summary
    from penstock.pipeline.errors import ErrorFilter

    wanted = meant.filter
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
    """Apply transactions again, in commit order; stops at the first that fails again."""
    wanted = meant.filter
    _refuse_unclear(entry_id, wanted, every=every)
    pipeline = open_file(file)
    edit = _function(attempt.function, pipeline)
    chosen = _chosen(pipeline.errors(), entry_id, wanted)
    apply_entries(pipeline, chosen, attempt.options(edit, go_on=go_on), skip_gone=not entry_id, json=json)


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
                say("nothing was edited, and nothing applied") if not json else print_json(as_json([]))
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
    """Give transactions up: remove them from the queue without applying them."""
    wanted = meant.filter
    _refuse_unclear(entry_id, wanted, every=every)
    pipeline = open_file(file)
    queue = pipeline.errors()
    chosen = _chosen(queue, entry_id, wanted)
    if not entry_id and chosen and not yes:
        if json or not sys.stdin.isatty():
            raise ConfigError("cannot ask whether to give transactions up: there is no terminal", do="say --yes")
        typer.confirm(f"give up {count(len(chosen), 'transaction')}: {', '.join(chosen)}?", abort=True)
    deleted = queue.delete(*chosen, skip_gone=not entry_id)
    if not json and not chosen:
        say(_NOTHING_THERE if every else _NOTHING_FITS)
    elif not json:
        say(f"deleted {count(len(deleted), 'transaction')}, never to be applied")
    # What has waited for one of them waits no more.
    went_on = []
    for one in pipeline.go_on(lambda text: warn(f"note: {printable(text)}")):
        went_on.append(one)
        if not json:
            say_outcome(one, is_last_word=False)
    if json:
        print_json({"deleted": deleted, **({"went_on": as_json(went_on)} if went_on else {})})
    if any(one.is_failed for one in went_on):
        raise typer.Exit(3)


@app.command()
def history(
    entry_id: Annotated[str | None, typer.Argument(metavar="ID", help=f"Only of one entry. {_ID}")] = None,
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
            ["at", "who", "did", "entry", "outcome", "edited or left out", "error"],
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
                ]
                for a in actions
            ],
        )


def _chosen(queue: Errors | PublishedQueue, entry_ids: list[str] | None, wanted: ErrorFilter) -> list[str]:
    return entry_ids or [entry.id for entry in queue.entries(wanted)]


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
