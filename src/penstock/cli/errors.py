"""`penstock errors`: the error queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import (
    FileOption,
    JsonOption,
    as_text,
    open_applying,
    print_facts,
    print_json,
    print_rows,
    say,
    shown,
    warn,
)
from penstock.errors import ConfigError
from penstock.text import count, printable

if TYPE_CHECKING:
    from penstock.apply.error_queue import ErrorEntry
    from penstock.change import Change, TableName, Transaction
    from penstock.pipeline.pipeline import Pipeline

app = typer.Typer(help="See, retry and delete the transactions that could not be applied.", no_args_is_help=True)

_ID = "As `penstock errors list` names it: shop.12, or just 12."

IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help=_ID)]
AllOption = Annotated[bool, typer.Option("--all", help="All entries, in commit order.")]


@app.command("list")
def list_(file: FileOption = None, json: JsonOption = False) -> None:
    """List the error queue, in commit order."""
    pipeline = open_applying(file)
    entries = pipeline.errors().entries()
    if json:
        print_json([_entry(entry, pipeline) for entry in entries])
    elif not entries:
        say("the error queue is empty")
    else:
        headings = ["id", "committed at", "failed change", "operation", "error", "message"]
        print_rows(
            headings,
            [
                [
                    e.id,
                    as_text(e.committed_at) if e.committed_at else "",
                    f"{e.message_number}/{e.message_count}",
                    f"{e.op} {_named(e.table, pipeline)}" if e.table else "",
                    e.error_number or e.error_code or "",
                    e.error_message,
                ]
                for e in entries
            ],
        )


@app.command()
def show(
    entry_id: Annotated[str, typer.Argument(metavar="ID", help=_ID)], file: FileOption = None, json: JsonOption = False
) -> None:
    """Show one transaction whole: its changes, which one failed and why, and what the target held instead."""
    pipeline = open_applying(file)
    entry, transaction = pipeline.errors().load(entry_id)
    if json:
        changes = [_change(change, pipeline) for change in transaction.changes]
        print_json({**_entry(entry, pipeline), "changes": changes})
        return
    print_facts(
        [
            ("id", entry.id),
            ("transaction", f"{entry.txn_id}, position {entry.commit_scn}"),
            ("committed at", as_text(entry.committed_at) if entry.committed_at else "unknown"),
            ("error", f"{entry.error_number or ''} {f'({entry.error_code})' if entry.error_code else ''}".strip()),
            ("message", entry.error_message),
        ]
    )
    _show_changes(entry, transaction, pipeline)


@app.command()
def retry(
    entry_id: IdsArgument = None,
    every: AllOption = False,
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Apply transactions again, in commit order; stops at the first that fails again."""
    _refuse_unclear(entry_id, every=every)
    pipeline = open_applying(file)
    in_order = {entry.id: number for number, entry in enumerate(pipeline.errors().entries())}
    chosen = sorted(entry_id or in_order, key=lambda one: in_order.get(one, -1))
    done = []
    try:
        for applied in pipeline.retry(chosen, tell=lambda text: warn(f"note: {printable(text)}")):
            done.append(applied)
    finally:
        # Also when one fails: what was applied before it has left the queue.
        print_json({"applied": done}) if json else say(
            f"applied {count(len(done), 'transaction')} from the error queue"
        )


@app.command()
def delete(
    entry_id: IdsArgument = None,
    every: AllOption = False,
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Give transactions up: remove them from the queue without applying them."""
    _refuse_unclear(entry_id, every=every)
    queue = open_applying(file).errors()
    chosen = entry_id or [entry.id for entry in queue.entries()]
    for one in chosen:
        queue.delete(one)
    print_json({"deleted": chosen}) if json else say(
        f"deleted {count(len(chosen), 'transaction')}, never to be applied"
    )


def _refuse_unclear(given: list[str] | None, *, every: bool) -> None:
    if every == bool(given):
        raise ConfigError("say which: either ids, or --all")


def _show_changes(entry: ErrorEntry, transaction: Transaction, pipeline: Pipeline) -> None:
    for number, change in enumerate(transaction.changes, start=1):
        mark = "->" if number == entry.message_number else "  "
        say(f"{mark} {number} {change.op} {_named(change.table, pipeline)}")
        for name, value in (change.before or {}).items():
            after = change.after or {}
            new = f" => {shown(after[name])}" if name in after else ""
            say(f"       {name}: {shown(value)}{new}")
        if change.before is None:
            for name, value in (change.after or {}).items():
                say(f"       {name}: {shown(value)}")
        if number == entry.message_number and entry.found is not None:
            say("       the target holds")
            for name, value in entry.found.items():
                say(f"         {name}: {shown(value)}")


def _named(table: TableName, pipeline: Pipeline) -> str:
    """A table at the target; where rules have renamed it, with its name at the source."""
    origins = ", ".join(map(str, pipeline.origins(table)))
    return f"{table} ({origins} at the source)" if origins else str(table)


def _source_table(table: TableName | None, pipeline: Pipeline) -> str | None:
    return None if table is None else ", ".join(map(str, pipeline.origins(table))) or str(table)


def _entry(entry: ErrorEntry, pipeline: Pipeline) -> dict[str, object]:
    plain = asdict(entry)
    plain["table"] = str(entry.table) if entry.table else None
    plain["source_table"] = _source_table(entry.table, pipeline)
    return plain


def _change(change: Change, pipeline: Pipeline) -> dict[str, object]:
    return {
        "op": change.op.value,
        "table": str(change.table),
        "source_table": _source_table(change.table, pipeline),
        "before": None if change.before is None else dict(change.before),
        "after": None if change.after is None else dict(change.after),
    }
