"""`penstock consumers`: who the log at the source is kept for."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import (
    FileOption,
    JsonOption,
    open_file,
    out,
    print_json,
    print_rows,
    print_with_margin,
    say_wrapped,
)
from penstock.text import count, short_time, size, were

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
        say_wrapped(
            "no log is kept for anybody: no `penstock run` has registered its pipeline yet, or the source has no log"
        )
    elif out.is_terminal:
        for c in found:
            since = f" since {short_time(c.oldest_at)}" if c.oldest_at else ""
            kept = f"{count(c.transactions, 'transaction')}, {size(c.size_bytes)}{since}"
            say_wrapped(f"{c.consumer.name}: {kept}, behind position {c.position}, seen {short_time(c.seen_at)}")
            print_with_margin("  ", f"id {c.consumer.id}{f', {c.consumer.target}' if c.consumer.target else ''}")
    else:
        print_rows(
            ["name", "id", "target", "position", "transactions", "MB", "oldest", "last seen"],
            [
                [
                    c.consumer.name,
                    c.consumer.id,
                    c.consumer.target or "",
                    c.position,
                    c.transactions,
                    f"{c.size_bytes / 1e6:.1f}",
                    c.oldest_at.isoformat(timespec="seconds") if c.oldest_at else "",
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
        say_wrapped(
            f"removed {removed.consumer.name}: {count(removed.transactions, 'transaction')}"
            f" {were(removed.transactions)} kept for it; the source frees what nobody else needs"
        )


@app.command("give-up")
def give_up(file: FileOption = None, json: JsonOption = False) -> None:
    """Remove the consumers that keep more of the log than capture.log.give_up_gb; the log goes with the last one.

    A run does this by itself; for a schedule, where it may be that no run is up.
    """
    from penstock.pipeline.log_watch import after_giving_up, given_up_text

    found = open_file(file).give_up()
    if json:
        print_json({"removed": [_plain(state) for state in found]})
        return
    for state in found:
        say_wrapped(f"{given_up_text(state)}; {after_giving_up()}")
    if not found:
        say_wrapped("no consumer keeps more of the log than capture.log.give_up_gb")


def _plain(state: ConsumerState) -> dict[str, object]:
    plain = asdict(state)
    return {**plain.pop("consumer"), **plain}
