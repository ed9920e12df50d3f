"""`penstock demo`: see it work, on servers of its own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import JsonOption, print_facts, print_json, say, say_wrapped
from penstock.cli.logs import LogFormat, logging_to_console
from penstock.cli.web import PageOptions, WebOption, prepared, served
from penstock.pipeline.report import facts

if TYPE_CHECKING:
    from penstock.config.pipeline import PipelineConfig
    from penstock.demo.story import Ending


def demo(
    seconds: Annotated[int, typer.Option(min=5, help="How many seconds pgbench works.")] = 20,
    web: WebOption = None,
    json: JsonOption = False,
) -> None:
    """Copy pgbench's tables between two embedded PostgreSQL servers and follow, with one failure on purpose."""
    from penstock.demo.story import play

    with ExitStack() as stack:
        door = None if web is None else stack.enter_context(prepared(web, PageOptions(), option="--web"))
        stack.enter_context(logging_to_console(LogFormat.TEXT, quiet=json))
        stack.enter_context(_interrupted_by_signals())

        def beside(config: PipelineConfig) -> AbstractContextManager[object]:
            return nullcontext() if door is None else served(door, [config])

        wait = input if door is not None and not json and sys.stdin.isatty() else None
        ending = play((lambda _: None) if json else say_wrapped, seconds=seconds, beside=beside, wait=wait)
    is_good = ending.verified.is_identical and ending.errors_left == 0
    if json:
        print_json({**facts(ending.progress), "identical": ending.verified.is_identical, "seconds": ending.seconds})
    else:
        show(ending)
    if not is_good:
        raise typer.Exit(1)


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """End as by Ctrl-C when told to, or when the terminal is closed: servers that the demo started end with it."""

    def interrupt(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def show(ending: Ending) -> None:
    """Print how the demo ended."""
    progress = ending.progress
    p50, p99 = progress.lag.quantile_s(0.5), progress.lag.quantile_s(0.99)
    verdict = "source and target identical" if ending.verified.is_identical else "source and target DIFFER"
    say("")
    print_facts(
        [
            ("transactions", f"{progress.transactions:,}"),
            ("row changes", f"{progress.changes:,}"),
            ("changes per second", f"{progress.changes / ending.seconds:,.0f}, as fast as pgbench made them"),
            ("lag", "" if p50 is None or p99 is None else f"p50 {p50:.2f} s, p99 {p99:.2f} s"),
            ("conflicts", f"{progress.conflicts}, made on purpose"),
            ("errors left", f"{ending.errors_left}"),
            ("verdict", verdict),
        ]
    )
