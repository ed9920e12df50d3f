"""`penstock web`, and `--web` of commands that do something else meanwhile: the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from penstock.cli.console import defaults, err, out, warn
from penstock.cli.groups import takes_groups
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config.pipeline import PipelineConfig
    from penstock.metrics import RunMetrics
    from penstock.web.server import Door, WebServer

DEFAULT = "127.0.0.1:8787"

FilesOption = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", help="A pipeline file; repeatable.", show_default="./pipeline.yaml"),
]
ListenOption = Annotated[
    str,
    typer.Option("--listen", metavar="[HOST:]PORT", help="Where to serve the page; port 0 takes any free one."),
]
WebOption = Annotated[
    str | None,
    typer.Option("--web", metavar="[HOST:PORT]", help=f"Also serve the page, at {DEFAULT} if not said; see `web`."),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="Read the page's token from this file, or make it (mode 0600)."),
]
OpenReadingOption = Annotated[
    bool,
    typer.Option("--read-without-token", help="Show everything but row values to those without the token."),
]
HostNameOption = Annotated[
    list[str] | None,
    typer.Option("--host-name", metavar="NAME", help="A name that clients may call this machine by; repeatable."),
]


@dataclass(frozen=True)
class PageOptions:
    """Who may see the page, and by which name."""

    token_file: TokenFileOption = None
    read_without_token: OpenReadingOption = False
    host_name: HostNameOption = None


class WithWeb(TyperCommand):
    """A command whose option `--web` may go without its address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line, with the address put where it was left out."""
        whole = []
        for place, one in enumerate(args):
            is_alone = one == "--web" and (place + 1 == len(args) or args[place + 1].startswith("-"))
            whole.append(f"--web={DEFAULT}" if is_alone else one)
        return super().parse_args(ctx, whole)


@takes_groups
def web(
    file: FilesOption = None,
    listen: ListenOption = DEFAULT,
    page: PageOptions = PageOptions(),
) -> None:
    """Serve a page that shows pipelines at work, with their error queues, until SIGTERM or SIGINT."""
    from penstock.cli.run import stopped_by_signals
    from penstock.pipeline_file import load

    configs = [load(one) for one in file or [defaults.file]]
    with (
        prepared(listen, page, option="--listen") as door,
        stopped_by_signals(tells=False) as stop,
        served(door, configs) as server,
    ):
        while server.is_serving and not stop.wait(1):
            pass


@contextmanager
def prepared(address: str, page: PageOptions, *, option: str) -> Iterator[Door]:
    """Take the page's address and its token, before anything is started.

    Raises:
        ConfigError: The extra is not installed, an option is wrong, or the address is taken.
    """
    try:
        from penstock.web.server import Door, WebSettings
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"the page needs {exc.name}, which is not installed", do="pip install 'penstock[web]'"
        ) from exc
    settings = WebSettings(address, page.token_file, page.read_without_token, page.host_name or (), option)
    with closing(Door(settings)) as door:
        yield door


@contextmanager
def served(door: Door, configs: Sequence[PipelineConfig], runs: Sequence[RunMetrics] = ()) -> Iterator[WebServer]:
    """Serve the page of some pipelines while the block runs, and say where."""
    from penstock.web.server import WebServer
    from penstock.wiring import open_pipeline

    with closing(WebServer(door, configs, open_pipeline, runs)) as server:
        server.start()
        # The token is for whoever sees this terminal, and for no log. A line of progress that is at work there is
        # known to its own console alone, which prints above it.
        console = out if out.is_terminal and err.is_terminal else err
        console.print(f"page: {door.url}", markup=False)
        if door.token_file is not None:
            console.print(f"its token is in {door.token_file}", markup=False)
        if door.warning is not None:
            warn(f"note: {door.warning}")
        yield server
