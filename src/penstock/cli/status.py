"""`penstock status`: where a pipeline stands."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import (
    FileOption,
    JsonOption,
    open_file,
    out,
    print_facts,
    print_json,
    print_rows,
    say,
    say_wrapped,
    warn,
)
from penstock.errors import ConfigError, PenstockError, RetryableError
from penstock.text import count, duration, printable, short_time, size, time_text

if TYPE_CHECKING:
    from penstock.apply.detail import Detail, ParameterDetail, TableDetail
    from penstock.history import ConsumerState
    from penstock.pipeline.pipeline import Pipeline
    from penstock.pipeline.publication import Publication
    from penstock.pipeline.status import Status

_EVERY_S = 2.0

_MAX_LAG_S = 300.0
"""More lag than this is wrong, where nothing else is said."""


def status(
    file: FileOption = None,
    json: JsonOption = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Repeat every two seconds, until Ctrl-C; with --json one object a line."),
    ] = False,
    detail: Annotated[bool, typer.Option("--detail", help="Also show apply servers, tables and parameters.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Print only what is wrong, one line each, with exit code 1; nothing if all is well."
        ),
    ] = False,
    max_lag: Annotated[
        float | None,
        typer.Option(
            "--max-lag", metavar="SECONDS", min=0, help="With --check: report more lag than this.", show_default="300"
        ),
    ] = None,
    max_errors: Annotated[
        int | None,
        typer.Option(
            "--max-errors",
            metavar="N",
            min=0,
            help="With --check: report more transactions in the error queue than this.",
            show_default="0",
        ),
    ] = None,
) -> None:
    """Show the consistency point first, then lag, backlog, errors and conflicts."""
    from penstock.pipeline.pipeline import Pipeline

    if check and (watch or detail):
        raise ConfigError("--check says what is wrong, once: leave --watch and --detail out")
    if not check and (max_lag is not None or max_errors is not None):
        raise ConfigError("--max-lag and --max-errors go with --check")
    pipeline = open_file(file)
    if check:
        _check(
            pipeline,
            max_lag_s=_MAX_LAG_S if max_lag is None else max_lag,
            max_errors=0 if max_errors is None else max_errors,
            json=json,
        )
        return
    if detail and not isinstance(pipeline, Pipeline):
        raise ConfigError("--detail is for pipelines that apply, and this one publishes", do="leave --detail out")

    def look() -> tuple[Status, Detail | None]:
        more = pipeline.detail() if detail and isinstance(pipeline, Pipeline) else None
        return pipeline.status(), more

    if not watch:
        found = look()
        _show(*found, json=json)
        if found[0].source_lost is not None:
            raise typer.Exit(RetryableError.exit_code)
        return
    with suppress(KeyboardInterrupt):
        while True:
            try:
                seen = look()
            except RetryableError as exc:
                # A server that restarts is what somebody may be watching for.
                warn(f"penstock: {exc}")
            else:
                if out.is_terminal and not json:
                    out.clear()
                _show(*seen, json=json, is_line=True)
                if not out.is_terminal and not json:
                    say("")
            time.sleep(_EVERY_S)


def _check(pipeline: Pipeline | Publication, *, max_lag_s: float, max_errors: int, json: bool) -> None:
    """Say what is wrong with a pipeline.

    Raises:
        Exit: Something is.
    """
    from penstock.pipeline.health import Problem, ProblemKind, problems

    found: Status | None = None
    try:
        found = pipeline.status()
        wrong = list(problems(found, max_lag_s=max_lag_s, max_errors=max_errors))
    except ConfigError:
        raise
    except PenstockError as exc:
        wrong = [Problem(ProblemKind.UNKNOWN, f"cannot tell where the pipeline stands: {exc}")]
    if json:
        plain = {} if found is None else found.to_json()
        print_json({"ok": not wrong, "problems": [one.to_json() for one in wrong], **plain})
    else:
        for one in wrong:
            say_wrapped(printable(one.text))
    if wrong:
        raise typer.Exit(1)


def _show(found: Status, more: Detail | None, *, json: bool, is_line: bool = False) -> None:
    if json:
        print_json(found.to_json() | ({} if more is None else {"detail": more.to_json()}), is_line=is_line)
        return
    show(found, detail=more is not None)
    if more is not None:
        show_detail(more)


def show_detail(more: Detail) -> None:
    """Print for a person what is known by apply server and by table, and the parameters."""
    if more.servers:
        say("")
        print_rows(
            ["server", "transactions", "changes", "errors", "waiting", "conflicts", "resolved"],
            [[s.server, s.transactions, s.changes, s.errors, s.held, s.conflicts, s.resolved] for s in more.servers],
        )
    if more.tables:
        say("")
        print_rows(
            ["table", "copied at", "changes", "errors", "resolved"],
            [
                [table.table, _copied(table), sum(table.changes.values()), table.errors, table.conflicts]
                for table in more.tables
            ],
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
    return str(table.copied_at) if table.is_copied else "partly"


def _set(one: ParameterDetail) -> str:
    assert one.set_at is not None
    return f"by {one.set_by}, {short_time(one.set_at)}"


def show(found: Status, *, detail: bool = False) -> None:
    """Print a status for a person; in `detail` with watermarks, and with what the log keeps for this pipeline."""
    from penstock.pipeline.log_watch import open_text
    from penstock.pipeline.status import PipelineState

    if found.state is PipelineState.NOT_SET_UP and found.publishes_to is None:
        what = "ledger or capture is missing; `penstock plan` shows what `penstock setup` would do"
        print_facts([("pipeline", f"{found.pipeline}, {found.state}: {what}")])
        return
    facts: list[tuple[str, object]] = [
        ("pipeline", f"{found.pipeline}, {found.state}{_run(found)}"),
        ("consistent up to", _consistent(found)),
        ("lag", _lag(found)),
        ("backlog", "unknown" if found.source_lost is not None else _backlog(found)),
        *(_applied(found) if found.publishes_to is None else _published(found)),
        ("tables", f"{found.copied} copied, {found.to_copy} to copy"),
    ]
    if detail and found.publishes_to is None:
        facts.append(("watermarks", f"low {found.low_watermark}, high {found.high_watermark}"))
    if found.source_lost:
        facts.append(("source out of reach", f"{found.source_lost}; all else is what was known last"))
    if found.refused:
        facts.append(("cannot go on", found.refused))
    facts += [("needs attention", line) for line in found.attention]
    if found.reason:
        at = f"{time_text(found.stopped_at)}: " if found.stopped_at else ""
        facts.append(("stopped", f"{at}{found.reason}"))
    facts += [
        ("log kept for", held_back(one, own_id=found.consumer_id))
        for one in found.consumers
        if detail or one.consumer.id != found.consumer_id or one.size_bytes
    ]
    facts += [("log held by", open_text(one, datetime.now(UTC))) for one in found.open_transactions]
    print_facts(facts)


def _run(found: Status) -> str:
    """Since when a run is at work, and where."""
    if found.started_at is None:
        return ""
    return f" since {time_text(found.started_at)} (pid {found.pid} on {printable(found.host or '')})"


def _consistent(found: Status) -> str:
    if found.consistent_at is None:
        if found.lag_s is not None:
            return "all that is recorded, which does not say when it was committed"
        # Of a source with another history nobody can tell; otherwise tables are still to be copied.
        return "unknown" if found.refused or found.source_lost else "not yet"
    text = time_text(found.consistent_at)
    if found.consistent_at == found.recorded_until:
        text += ", the last that is recorded"
    if found.consistent_but_for:
        text += f", but for {count(found.consistent_but_for, 'transaction')} in the error queue"
    return text


def _lag(found: Status) -> str:
    if found.lag_s is None:
        return "unknown"
    return duration(found.lag_s) if found.lag_s or found.backlog_changes else "0.0 s, nothing waits"


def _backlog(found: Status) -> str:
    changes = count(found.backlog_changes, "change")
    # A log's files hold what others wait for, too, and what was freed and not vacuumed yet.
    return f"{changes} (log on disk: {size(found.backlog_bytes)})" if found.backlog_bytes else changes


def _applied(found: Status) -> list[tuple[str, object]]:
    return [
        (
            "error queue",
            count(found.errors, "transaction")
            + (f", and {found.held:,} that {'waits' if found.held == 1 else 'wait'} behind them" if found.held else "")
            + (f"; {found.on_hold:,} on hold" if found.on_hold else ""),
        ),
        ("conflicts", f"{found.conflicts:,} queued, {found.resolved:,} resolved"),
        ("applied", _so_far(found) + (f", {count(found.ddl, 'DDL statement')}" if found.ddl else "")),
    ]


def _published(found: Status) -> list[tuple[str, object]]:
    if found.low_watermark:
        upto = f"up to position {found.low_watermark}"
    else:
        upto = f"the first copy of {count(found.copied, 'table')}, no change yet" if found.copied else "nothing yet"
    queue = f"{count(found.errors, 'transaction')}{f'; {found.on_hold:,} on hold' if found.on_hold else ''}"
    return [
        ("published", _so_far(found)),
        ("published to", f"{found.publishes_to}, {upto}"),
        *([("error queue", queue)] if found.errors else []),
    ]


def _so_far(found: Status) -> str:
    return f"{count(found.transactions, 'transaction')}, {count(found.changes, 'row change')}"


def held_back(state: ConsumerState, *, own_id: str) -> str:
    """What a consumer holds back, in one line; `own_id` is that of the pipeline."""
    consumer = state.consumer
    where = f" ({consumer.target})" if consumer.target else ""
    this = ", this pipeline" if consumer.id == own_id else ""
    return (
        f"{consumer.name}{where}{this}: {count(state.transactions, 'transaction')}{_announced(state)},"
        f" {size(state.size_bytes)}{_since(state)} behind position {state.position},"
        f" seen {time_text(state.seen_at)}"
    )


def _announced(state: ConsumerState) -> str:
    return f" and {count(state.announced, 'row')} beside the log (CREATE and the like)" if state.announced else ""


def _since(state: ConsumerState) -> str:
    return f" since {time_text(state.oldest_at)}" if state.oldest_at else ""
