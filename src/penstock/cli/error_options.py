"""The options of `penstock errors`: which entries are meant, how they are applied, and which values are edited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import TIME, parse_time
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.apply.entry_edits import EntryEdit, Setting
    from penstock.apply.retry import RetryOptions
    from penstock.pipeline.errors import ErrorFilter

ID_HELP = "As `penstock errors list` names it: shop.12, or just 12."

IdArgument = Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help=ID_HELP)]
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
