"""`penstock`: its commands, and what its exit codes mean.

0 done · 1 `verify` found differences, `doctor` a fault, or `cutover` left the copy unready · 2 wrong file or option ·
3 a person must change something ·
4 something was in the way that may pass · 5 `run` caught up, or arrived, and the error queue holds transactions
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import (
    apply,
    changes,
    conflicts,
    consumers,
    cutover,
    db2_collect,
    decode,
    demo,
    doctor,
    errors,
    import_xmlblaster,
    init,
    plan,
    resync,
    run,
    setup,
    status,
    switch,
    teardown,
    verify,
    web,
)
from penstock.cli.console import defaults, err, print_with_margin, show_traceback
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="Capture committed changes and apply them to another database, transaction by transaction.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"penstock {__version__}\n")
        raise typer.Exit


@app.callback()
def _main(
    file: Annotated[Path | None, typer.Option("--file", "-f", help="The pipeline file.")] = None,
    _: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    if file is not None:
        defaults.file, defaults.is_said = file, True


app.command("init")(init.init)
app.command("plan")(plan.plan)
app.command("setup")(setup.setup)
app.command("run", cls=web.WithWeb)(run.run)
app.command("status")(status.status)
app.command("web")(web.web)
app.add_typer(apply.app, name="apply")
app.add_typer(errors.app, name="errors")
app.command("conflicts")(conflicts.conflicts)
app.add_typer(consumers.app, name="consumers")
app.command("changes")(changes.changes)
app.add_typer(decode.app, name="decode")
app.command("db2-collect")(db2_collect.db2_collect)
app.command("import-xmlblaster")(import_xmlblaster.import_xmlblaster)
app.command("resync")(resync.resync)
app.command("verify")(verify.verify)
app.command("switch")(switch.switch)
app.command("cutover")(cutover.cutover)
app.command("teardown")(teardown.teardown)
app.command("doctor")(doctor.doctor)
app.command("demo", cls=web.WithWeb)(demo.demo)


def silence_spark() -> None:
    """Keep to ourselves what Spark's Python half logs: it raises it as well, or its Java was ended on purpose."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger("pyspark").setLevel(logging.CRITICAL)
    # Some of that it logs without a name.
    logging.getLogger().addFilter(lambda record: "py4j" not in Path(record.pathname).parts)


def main() -> None:
    """Run the command line; every error we raise on purpose ends as one clear message and an exit code."""
    silence_spark()
    try:
        app()
    except PenstockError as exc:
        show_traceback(exc)
        print_with_margin("penstock: ", str(exc), style="red", console=err)
        sys.exit(exc.exit_code)
    except BrokenPipeError:
        # The reader of our output has gone; that is its right.
        sys.stdout = None
        sys.exit(0)
