"""`penstock doctor`: what may be in the way, from Java to grants, and how to fix it."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import FileOption, JsonOption, defaults, out, print_json, print_with_margin, say
from penstock.errors import ConfigError
from penstock.text import count, printable

if TYPE_CHECKING:
    from penstock.doctor.diagnosis import Diagnosis
    from penstock.examination import Finding

_TIMEOUT_S = 8.0
"""With the start of Python it is ten seconds, whatever hangs."""


def doctor(
    file: FileOption = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="FILE.zip",
            help="Also write a file for a bug report, without row values or secrets.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="How many seconds the slowest look may take.")
    ] = _TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Look at the machine, databases, Kafka, Spark and the pipeline; say what is wrong, and how to fix it."""
    from penstock.doctor.diagnosis import diagnose

    if bundle is not None and bundle.name.startswith("-"):
        raise ConfigError(f"--bundle needs a file, and was given {str(bundle)!r}", do="name one: --bundle bug.zip")
    found = diagnose(file or defaults.file, timeout_s=timeout)
    if bundle is not None:
        from penstock.doctor.bundle import write_bundle

        write_bundle(found, bundle)
    if json:
        print_json({**found.to_json(), "bundle": None if bundle is None else str(bundle)})
    else:
        _show(found)
        if bundle is not None:
            say(f"wrote {bundle}: read it before you send it")
    _leave(exit_code(found))


def exit_code(found: Diagnosis) -> int:
    """0 without a fault, 2 if the pipeline file is wrong, else 1."""
    from penstock.examination import Severity

    if found.config_fault is not None:
        return ConfigError.exit_code
    return 1 if found.worst is Severity.FAULT else 0


def _show(found: Diagnosis) -> None:
    from penstock.examination import Severity

    for finding in found.findings:
        _show_finding(finding)
    parts = [
        count(found.number(severity), severity)
        for severity in (Severity.FAULT, Severity.WARNING)
        if found.number(severity)
    ]
    verdict = ", ".join(parts) or "all is well"
    say(f"{verdict} ({count(len(found.findings), 'finding')} in {found.took_s:.1f} s)")


def _show_finding(finding: Finding) -> None:
    style = {"warning": "yellow", "fault": "red"}.get(finding.severity)
    margin = f"{finding.severity:<8} "
    if not out.is_terminal:
        say(f"{margin}{finding}")
        return
    print_with_margin(margin, str(replace(finding, do="")), style=style)
    if finding.do:
        # In one piece, to be copied; the terminal breaks it where it has to.
        say(f"{' ' * len(margin)}{printable(finding.do)}")


def _leave(code: int) -> None:
    """End the program, also while a look goes on that did not answer in time: the interpreter would wait for it."""
    if any(thread.name.startswith("look at ") for thread in threading.enumerate()):
        out.file.flush()
        sys.stderr.flush()
        os._exit(code)
    raise typer.Exit(code)
