"""`penstock status`: where a pipeline stands."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import FileOption, JsonOption, open_file, out, print_facts, print_json, print_rows, say, warn
from penstock.errors import ConfigError, RetryableError
from penstock.text import count, duration

if TYPE_CHECKING:
    from penstock.apply.detail import Detail, ParameterDetail, TableDetail
    from penstock.pipeline.status import HeldBack, Status

_EVERY_S = 2.0


def status(
    file: FileOption = None,
    json: JsonOption = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Again every two seconds, until Ctrl-C; with --json an object a line."),
    ] = False,
    detail: Annotated[
        bool, typer.Option("--detail", help="Also by apply server and by table, and the parameters.")
    ] = False,
) -> None:
    """Show the consistency point first, then lag, backlog, errors and conflicts."""
    from penstock.pipeline.pipeline import Pipeline

    pipeline = open_file(file)
    if detail and not isinstance(pipeline, Pipeline):
        raise ConfigError("--detail: the pipeline publishes, and has no apply process to tell of")

    def look() -> tuple[Status, Detail | None]:
        more = pipeline.detail() if detail and isinstance(pipeline, Pipeline) else None
        return pipeline.status(), more

    if not watch:
        _show(*look(), json=json)
        return
    with suppress(KeyboardInterrupt):
        while True:
            try:
                found = look()
            except RetryableError as exc:
                # A server that restarts is what somebody may be watching for.
                warn(f"penstock: {exc}")
            else:
                if out.is_terminal and not json:
                    out.clear()
                _show(*found, json=json, is_line=True)
                if not out.is_terminal and not json:
                    say("")
            time.sleep(_EVERY_S)


def _show(found: Status, more: Detail | None, *, json: bool, is_line: bool = False) -> None:
    if json:
        print_json(found.to_json() | ({} if more is None else {"detail": more.to_json()}), is_line=is_line)
        return
    show(found)
    if more is not None:
        show_detail(more)


def show_detail(more: Detail) -> None:
    """Print for a person what is known by apply server and by table, and the parameters."""
    if more.servers:
        say("")
        print_rows(
            ["server", "transactions", "changes", "errors", "held", "conflicts", "resolved"],
            [[s.server, s.transactions, s.changes, s.errors, s.held, s.conflicts, s.resolved] for s in more.servers],
        )
    if more.tables:
        say("")
        print_rows(
            ["table", "copied at", "errors", "conflicts resolved"],
            [[table.table, _copied(table), table.errors, table.conflicts] for table in more.tables],
        )
    if more.parameters:
        say("")
        print_rows(
            ["parameter", "value", "set"],
            [[one.name, one.value or "none", "" if one.set_by is None else _set(one)] for one in more.parameters],
        )


def _copied(table: TableDetail) -> str:
    if table.copied_at is None:
        return "not copied"
    return str(table.copied_at) if table.is_copied else f"{table.copied_at}, not complete"


def _set(one: ParameterDetail) -> str:
    assert one.set_at is not None
    return f"by {one.set_by} at {one.set_at.isoformat(timespec='seconds')}"


def show(found: Status) -> None:
    """Print a status for a person."""
    from penstock.pipeline.status import State

    if found.state is State.NOT_SET_UP and found.publishes_to is None:
        what = "ledger or capture is missing; `penstock plan` shows what `penstock setup` would do"
        print_facts([("pipeline", f"{found.pipeline}, {found.state}: {what}")])
        return
    facts: list[tuple[str, object]] = [
        ("pipeline", f"{found.pipeline}, {found.state}"),
        ("consistent up to", _consistent(found)),
        ("lag", "unknown" if found.lag_s is None else duration(found.lag_s)),
        ("waiting at the source", _waiting(found)),
        *(_applied(found) if found.publishes_to is None else _published(found)),
        ("tables", f"{found.copied} copied, {found.to_copy} to copy"),
    ]
    if found.refused:
        facts.append(("cannot go on", found.refused))
    facts += [("needs attention", line) for line in found.attention]
    if found.reason:
        at = f"{found.stopped_at.isoformat(timespec='seconds')}: " if found.stopped_at else ""
        facts.append(("stopped", f"{at}{found.reason}"))
    facts += [("log kept for", held_back(consumer)) for consumer in found.consumers]
    print_facts(facts)


def _consistent(found: Status) -> str:
    if found.consistent_at is not None:
        return f"{found.consistent_at.isoformat(timespec='seconds')} (source commit time)"
    # Of a source with another history nobody can tell; otherwise tables are still to be copied.
    return "unknown" if found.refused else "not yet"


def _waiting(found: Status) -> str:
    changes = count(found.backlog_changes, "change")
    # A log's files hold what others wait for, too, and what was freed and not vacuumed yet.
    return f"{changes}; files of {found.backlog_bytes / 1e6:,.1f} MB" if found.backlog_bytes else changes


def _applied(found: Status) -> list[tuple[str, object]]:
    return [
        ("errors in the queue", f"{found.errors:,}" + (f", and {found.held:,} held behind them" if found.held else "")),
        ("conflicts so far", f"{found.conflicts:,}, and {found.resolved:,} resolved"),
        ("applied so far", _so_far(found)),
        ("watermarks", f"low {found.low_watermark}, high {found.high_watermark}"),
    ]


def _published(found: Status) -> list[tuple[str, object]]:
    upto = f"up to position {found.low_watermark}" if found.low_watermark else "nothing yet"
    return [("published so far", _so_far(found)), ("published to", f"{found.publishes_to}, {upto}")]


def _so_far(found: Status) -> str:
    return f"{count(found.transactions, 'transaction')}, {count(found.changes, 'row change')}"


def held_back(consumer: HeldBack) -> str:
    """What a consumer holds back, in one line."""
    where = f" ({consumer.target})" if consumer.target else ""
    this = ", this pipeline" if consumer.is_this else ""
    return (
        f"{consumer.name}{where}{this}: {count(consumer.transactions, 'transaction')},"
        f" {consumer.size_bytes / 1e6:,.1f} MB behind position {consumer.position},"
        f" seen {consumer.seen_at.isoformat(timespec='seconds')}"
    )
