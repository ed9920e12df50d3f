"""What a pipeline file says of each kind of source, which the source's own `config.py` tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from penstock.config.document import Document, Fault
from penstock.storage import Storage

ONLY_TRIGGERS_KNOW = "only trigger_queue knows who wrote a change"
"""Why other sources have no `changes_of`."""


@dataclass(frozen=True)
class SourceKind:
    """A kind of source, for the part `capture` of a pipeline file.

    Attributes:
        name: What `capture.source` calls it.
        captures: How it captures, in words that follow its name.
        check: Finds what does not go with it in the file, and what it lacks; `capture` is a mapping there.
        connects_to: What `capture.connection` names; None where it has a path alone.
        open_folder: Makes a `pipeline.connectors.SourceWithCopies` of the folder `capture.path`, and imports it only
            then. None for a source that needs more than a folder: `wiring` makes those.
        tells_ddl: Its changes say when a table was altered or dropped.
    """

    name: str
    captures: str
    check: Callable[[Document], list[Fault]]
    connects_to: Literal["database", "cluster"] | None = None
    open_folder: Callable[[Storage], object] | None = None
    tells_ddl: bool = False


def check_folder(
    document: Document,
    *,
    published: str,
    connection: str,
    row_triggers: str,
    changes_of: str = ONLY_TRIGGERS_KNOW,
    rules: str | None = None,
) -> list[Fault]:
    """Find what does not go with a source that reads the folder `capture.path` and can be applied, or is missing.

    Args:
        published: Why what it reads cannot be published; found alone, as it makes all else pointless.
        connection, row_triggers, changes_of: Why it has none of these settings below `capture`.
        rules: Why it has no rules; None where it has some.
    """
    refused = document.unfit({"publish": published})
    if rules is not None:
        refused = refused or document.unfit({"rules": rules})
    unfit = {"connection": connection, "row_triggers": row_triggers, "changes_of": changes_of}
    return refused or [
        *document.unfit({f"capture.{name}": why for name, why in unfit.items()}),
        *document.missing("capture", ["path"]),
    ]
