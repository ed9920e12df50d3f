"""`penstock resync`: tables anew, one by one while everything flows, or all of them by a new first copy."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import FileOption, JsonOption, MasterOption, open_file, print_json, say, say_wrapped, warn
from penstock.cli.groups import takes_groups
from penstock.cli.verify import compare
from penstock.errors import ConfigError
from penstock.text import count, printable

if TYPE_CHECKING:
    from penstock.change import TableName
    from penstock.database import Emptying
    from penstock.pipeline.pipeline import Pipeline
    from penstock.pipeline.publication import Publication

_EVERY = "*.*"


@dataclass(frozen=True)
class PublishedOptions:
    """What is asked of a pipeline that publishes, besides a copy."""

    cancel: Annotated[
        bool, typer.Option("--cancel", help="Publishing: cancel copies that were requested or are under way.")
    ] = False
    recreate: Annotated[
        bool, typer.Option("--recreate", help="Publishing: receivers drop the tables, and create them anew.")
    ] = False

    def check(self, *, publishes: bool) -> None:
        """Raise a `ConfigError` where they do not go with each other, or with the pipeline."""
        if self.cancel and self.recreate:
            raise ConfigError("--cancel and --recreate exclude each other")
        if (self.cancel or self.recreate) and not publishes:
            raise ConfigError("--cancel and --recreate are for pipelines that publish")


@dataclass(frozen=True)
class ChangingOptions:
    """Whether anything is changed at a target, and whether a person is asked before."""

    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, as `penstock verify` does; change nothing.")
    ] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False


@takes_groups
def resync(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE...", help="Tables, or patterns like schema.table, to make equal to the source."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every table, by a new first copy that a run makes.")] = False,
    published: PublishedOptions = PublishedOptions(),
    changing: ChangingOptions = ChangingOptions(),
    file: FileOption = None,
    master: MasterOption = None,
    json: JsonOption = False,
) -> None:
    """Make tables equal to the source.

    TABLE: compared row by row; the rows that differ are written to the target as the source has them, range by range,
    while everything else flows. It works beside `penstock run`, and without.

    --all: the tables that were copied are emptied and the rest is forgotten; the next `penstock run` copies them anew.
    The way out when source or target were restored, moved or set up anew. The source may be written to meanwhile.

    A pipeline that publishes: the run, or the next one, publishes the rows of the tables once more, before further
    changes of them.
    """
    if every == bool(tables):
        raise ConfigError("name the tables to resync, or use --all for a new first copy of every table")
    from penstock.pipeline.pipeline import Pipeline

    pipeline = open_file(file, master=master)
    published.check(publishes=not isinstance(pipeline, Pipeline))
    if not isinstance(pipeline, Pipeline):
        if changing.dry_run:
            raise ConfigError("--dry-run shows what would be emptied at a target, and this pipeline publishes")
        _publish_anew(pipeline, tables or [_EVERY], published, json=json)
        return
    if tables:
        compare(pipeline, tables, repair=not changing.dry_run, json=json)
        return
    _empty(pipeline, changing, json=json)


def _empty(pipeline: Pipeline, options: ChangingOptions, *, json: bool) -> None:
    """Prepare a new first copy at a target."""
    plan = pipeline.resync_plan()
    if options.dry_run:
        print_json(_as_json(plan.emptying)) if json else _show(plan.emptying, "to be emptied", plan.target)
        return
    if not options.yes:
        if json or not sys.stdin.isatty():
            raise ConfigError("cannot ask whether to empty tables: there is no terminal", do="say --yes")
        if plan.makes_set_anew:
            say("the capture set was copied here from another place, and is made anew")
        _show(plan.emptying, "to be emptied", plan.target)
        typer.confirm("empty them?", abort=True)
    done = pipeline.resync(lambda text: warn(f"note: {printable(text)}"))
    if json:
        print_json(_as_json(done))
        return
    _show(done, "emptied", plan.target)
    say("`penstock run` makes the new first copy")


def _publish_anew(publication: Publication, tables: Sequence[str], options: PublishedOptions, *, json: bool) -> None:
    """Request copies of tables that are published, or cancel them."""
    if options.cancel:
        done = publication.cancel_copies(tables)
        parts = {"withdrawn": done.withdrawn, "cancelled": done.cancelled, "idle": done.idle}
        told = [
            ("not copied anew, published as before", done.withdrawn),
            ("cancelled, and not published until a copy is requested", done.cancelled),
            ("without a copy that was requested or is under way", done.idle),
        ]
    else:
        asked = publication.request_copies(tables, recreates=options.recreate)
        parts = {"requested": asked.requested, "due": asked.due}
        told = [
            ("requested, and made by `penstock run`", asked.requested),
            ("due anyway, for the first time or again", asked.due),
        ]
    if json:
        print_json({name: [str(table) for table in found] for name, found in parts.items()})
        return
    for what, found in told:
        if found:
            say_wrapped(f"{count(len(found), 'table')} {what}: {_listed(found)}")


def _listed(tables: Collection[TableName]) -> str:
    return printable(", ".join(map(str, tables)))


def _as_json(emptying: Emptying) -> dict[str, object]:
    left = {str(table): why for table, why in emptying.left.items()}
    return {"emptied": [str(table) for table in emptying.tables], "left": left, "errors": emptying.errors}


def _show(emptying: Emptying, what: str, target: str) -> None:
    names = ", ".join(str(table) for table in emptying.tables) or "none"
    say_wrapped(f"{what} at the target ({target}): {count(len(emptying.tables), 'table')}: {names}")
    if emptying.errors:
        errors = count(emptying.errors, "transaction")
        warn(f"note: {errors} in the error queue, forgotten: the new copy holds what the source made of them")
    for table, why in emptying.left.items():
        warn(f"note: {table} is left as it is: {why}; empty it, or take it out of capture.tables")
