"""`penstock consumers`: who the log at the source is kept for."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import FileOption, JsonOption, open_file, print_json, print_rows, say
from penstock.text import count, were

if TYPE_CHECKING:
    from penstock.history import ConsumerState

app = typer.Typer(help="See the consumers of the source's log, and remove those that will not return.")


@app.callback(invoke_without_command=True)
def list_(context: typer.Context, file: FileOption = None, json: JsonOption = False) -> None:
    """List the consumers for which the source keeps its log, the one furthest behind first."""
    if context.invoked_subcommand is not None:
        return
    found = open_file(file).consumers()
    if json:
        print_json([_plain(consumer) for consumer in found])
    elif not found:
        say("no log is kept for anybody: no `penstock run` has registered its pipeline yet, or the source has no log")
    else:
        print_rows(
            ["name", "id", "target", "position", "transactions", "MB", "last seen"],
            [
                [
                    c.consumer.name,
                    c.consumer.id,
                    c.consumer.target or "",
                    c.position,
                    c.transactions,
                    f"{c.size_bytes / 1e6:.1f}",
                    c.seen_at.isoformat(timespec="seconds"),
                ]
                for c in found
            ],
        )


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, or its id if several have that name.")],
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Stop keeping the log for a consumer that will not return; if it does, it may need a new first copy."""
    removed = open_file(file).remove_consumer(name)
    if json:
        print_json({"removed": _plain(removed)})
    else:
        say(
            f"removed {removed.consumer.name}: {count(removed.transactions, 'transaction')}"
            f" {were(removed.transactions)} kept for it; the source frees what nobody else needs"
        )


def _plain(state: ConsumerState) -> dict[str, object]:
    plain = asdict(state)
    return {**plain.pop("consumer"), **plain}
