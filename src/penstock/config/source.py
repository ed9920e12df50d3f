"""What a pipeline file says of each kind of source, which the source's own `config.py` tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from penstock.config.document import Document, Fault

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
    """

    name: str
    captures: str
    check: Callable[[Document], list[Fault]]
    connects_to: Literal["database", "cluster"] | None = None
