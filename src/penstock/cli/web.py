"""`penstock web`, and `--web` of commands that do something else meanwhile: the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from penstock.cli.console import defaults, say, warn
from penstock.cli.groups import takes_groups
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config.pipeline import PipelineConfig
    from penstock.web.server import WebServer

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
    typer.Option("--host-name", metavar="NAME", help="A name that browsers may call this machine by; repeatable."),
]


@dataclass(frozen=True)
class PageOptions:
    """Who may see the page, and by which name."""

    token_file: TokenFileOption = None
    read_without_token: OpenReadingOption = False
    host_name: HostNameOption = None


@dataclass(frozen=True)
class BesideOptions(PageOptions):
    """Whether a command serves the page, too."""

    web: WebOption = None


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

    files = file or [defaults.file]
    configs = [(one, load(one)) for one in files]
    with stopped_by_signals(tells=False) as stop, served(configs, listen, page, option="--listen") as server:
        while server.is_serving and not stop.wait(1):
            pass


@contextmanager
def served_beside(config: PipelineConfig, file: Path, page: BesideOptions) -> Iterator[None]:
    """Serve the page of a pipeline while the block runs, if an address is given."""
    if page.web is None:
        if page != BesideOptions():
            raise ConfigError("--token-file, --read-without-token and --host-name go with --web")
        yield
        return
    with served([(file, config)], page.web, page, option="--web"):
        yield


@contextmanager
def served(
    configs: list[tuple[Path, PipelineConfig]], address: str, page: PageOptions, *, option: str
) -> Iterator[WebServer]:
    """Serve the page of some pipelines while the block runs, and say where.

    Raises:
        ConfigError: The extra is not installed, or an option is wrong.
        OperatorError: The address is taken.
    """
    try:
        from penstock.web.server import WebServer, WebSettings, exposure
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"the page needs {exc.name}, which is not installed", do="pip install 'penstock[web]'"
        ) from exc
    from penstock.wiring import open_pipeline

    settings = WebSettings(address, page.token_file, page.read_without_token, page.host_name or (), option)
    server = WebServer(configs, open_pipeline, settings)
    try:
        server.start()
        # The token is for whoever sees this terminal, and for no log.
        say(f"page: {server.url}")
        if page.token_file is not None:
            say(f"its token is in {page.token_file}")
        warning = exposure(server.address)
        if warning is not None:
            warn(f"note: {warning}")
        yield server
    finally:
        server.close()
