"""`penstock apply`: see and set how the apply process works, and stop its run, wherever that is."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.console import FileOption, JsonOption, open_applying, print_json, print_rows, say

app = typer.Typer(help="See and set how changes are applied, and stop the run that applies them.", no_args_is_help=True)


@app.command()
def show(file: FileOption = None, json: JsonOption = False) -> None:
    """Show every parameter: its value, and whether it was set or comes from the pipeline file.

    The names are those of Oracle Streams' apply process; docs/settings.md says what each does.
    """
    pipeline = open_applying(file)
    values, were_set = pipeline.parameters().texts(), pipeline.parameters_set()
    rows = [(name, value, "set" if name in were_set else "file") for name, value in values.items()]
    if json:
        print_json([{"name": name, "value": value, "from": origin} for name, value, origin in rows])
    else:
        print_rows(["parameter", "value", "from"], [[name, value or "none", origin] for name, value, origin in rows])


@app.command("set")
def set_(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name that `penstock apply show` lists; case-insensitive.")
    ],
    value: Annotated[
        str | None, typer.Argument(metavar="[VALUE]", help="Without a value, the pipeline file's applies again.")
    ] = None,
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Set a parameter, overriding the pipeline file; a run adopts it with its next batch."""
    pipeline = open_applying(file)
    pipeline.set_parameter(name, value)
    now = pipeline.parameters().texts()[name.lower()]
    if json:
        print_json({"name": name.lower(), "value": now, "from": "file" if value is None else "set"})
        return
    say(f"{name.lower()} is {now or 'empty'}{'' if value is not None else ', as the pipeline file says'}")


@app.command()
def stop(
    force: Annotated[
        bool, typer.Option("--force", help="Stop at once: roll back the work in progress, which the next run applies.")
    ] = False,
    wait_s: Annotated[float, typer.Option("--wait", min=0, help="How many seconds to wait for the run to end.")] = 60,
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Stop this pipeline's run, on whichever machine it is; it first finishes what it has begun."""
    instead = "stop its run by Ctrl-C or SIGTERM: `penstock apply stop` is for pipelines that apply"
    state = open_applying(file, do=instead).stop_run(force=force, wait_s=wait_s)
    if json:
        print_json({"low_watermark": state.low_watermark, "high_watermark": state.high_watermark})
    else:
        say(f"stopped at position {state.low_watermark}")
