"""An entry of the error queue in the user's own editor."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.console import as_text, warn
from penstock.cli.error_view import shown_as_json
from penstock.errors import OperatorError
from penstock.text import printable

if TYPE_CHECKING:
    from penstock.pipeline.pipeline import Pipeline
    from penstock.pipeline.publication import Publication


@contextmanager
def edited(pipeline: Pipeline | Publication, entry_id: str, *, keep: bool) -> Iterator[str | None]:
    """Have a person edit an entry, and yield what they made of it; None where they changed nothing.

    What they wrote is kept where the block fails, or where `keep` says so, in a file that only they can read, and they
    are told where.

    Raises:
        OperatorError: There is no editor, or it failed.
    """
    found = shown_as_json(pipeline.errors().show(entry_id), pipeline)
    found["changes"] = [{**change, "skip": False} for change in found["changes"]]
    before = json.dumps(found, indent=2, ensure_ascii=False, default=as_text) + "\n"
    # Only its owner may enter a folder that mkdtemp has made.
    file = Path(tempfile.mkdtemp(prefix="penstock-")) / f"{entry_id.rpartition('.')[2]}.json"
    file.write_text(before, encoding="utf-8")
    done = False
    try:
        _open_editor(file)
        text = _written(file)
        yield text if text != before else None
        done = True
    finally:
        if file.exists() and file.read_bytes() != before.encode() and (keep or not done):
            kept = f"`penstock errors edit {entry_id} --from {shlex.quote(str(file))}`"
            warn(f"note: what you have written, row values with it, is kept: {printable(kept)} goes on from there")
        else:
            shutil.rmtree(file.parent, ignore_errors=True)


def _open_editor(file: Path) -> None:
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    where = "$VISUAL or $EDITOR"
    try:
        done = subprocess.run([*shlex.split(named), str(file)], check=False)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "its quotes do not match"
        raise OperatorError(
            f"cannot start the editor {named!r}: {why}", where=where, do="name another one, or edit by --set or --from"
        ) from exc
    if done.returncode != 0:
        raise OperatorError(f"the editor {named!r} ended with {done.returncode}; nothing was applied", where=where)


def _written(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise OperatorError(
            "what the editor left cannot be read as UTF-8; nothing was applied", where=str(file)
        ) from exc
