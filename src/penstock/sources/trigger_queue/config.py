"""What goes with `capture.source: trigger_queue` in a pipeline file, and with no other source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field, field_validator

from penstock.config.document import Document, Fault, Path_
from penstock.config.parts import ConfigPart
from penstock.config.source import SourceKind

_LONGEST = 40
"""Names of PostgreSQL have 63 letters, and the longest one behind the prefix has 17."""


class DocumentedConfig(ConfigPart):
    """The documented tables beside the log: ITEMS, TABLES and what goes with them."""

    prefix: str = Field(
        default="REPL_", description="What their names begin with; setup says so where it has to write it otherwise"
    )
    schema_name: str = Field(default="public", alias="schema", min_length=1, description="The schema that they lie in")
    version: str = Field(
        default="0.0",
        max_length=255,
        description="What rows of ITEMS say the version of the source's tables is called (replication.version); with"
        " another one, `setup` puts a CREATE for each table into ITEMS",
    )

    @property
    def names_prefix(self) -> str:
        """The prefix as it stands in names: cleaned, and in the small letters of a name without quotes."""
        return _cleaned(self.prefix).lower()

    @property
    def notes(self) -> list[str]:
        """What a person should know of the prefix."""
        if _cleaned(self.prefix) == self.prefix:
            return []
        return [f"the prefix {self.prefix!r} of the documented tables is written {_cleaned(self.prefix)!r}"]

    @field_validator("prefix")
    @classmethod
    def _begins_names(cls, prefix: str) -> str:
        cleaned = _cleaned(prefix)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_$]*", cleaned) or len(cleaned) > _LONGEST:
            raise ValueError(
                f"must begin a name without quotes: a letter or _, then letters, digits, _ and $, {_LONGEST} at most"
            )
        return prefix


def _cleaned(prefix: str) -> str:
    """A prefix without slashes, and with _ for what else stands in the way of a name."""
    return re.sub(r"[\s.:\[\]-]", "_", re.sub(r"[/\\]", "", prefix))


def check_trigger_queue(document: Document) -> list[Fault]:
    """Find what does not go with a capture by triggers, or is missing."""
    return [
        *document.unfit({"capture.path": "capture.source trigger_queue has no path, but a connection"}),
        *document.missing("capture", ["connection"]),
    ]


def check_others(document: Document, told_of_ddl: Sequence[str]) -> list[Fault]:
    """Find what only a capture by triggers can do: other sources decide on copies themselves, and most tell no DDL.

    Args:
        told_of_ddl: The names of the sources that tell it.
    """
    if document.value("capture", "source") == "trigger_queue":
        return []
    faults = document.unfit(
        {
            "capture.log": "only a capture by triggers has a log at the source that is freed",
            "capture.documented": "only trigger_queue has documented tables beside its log",
        }
    )
    apply = document.value("apply")
    if not isinstance(apply, dict):
        return faults
    if apply.get("first_copy") is False:
        what = "only a pipeline from trigger_queue can begin with what the target holds"
        faults.append(document.fault(("apply", "first_copy"), what))
    faults += document.unfit({"apply.handlers.message": "only a pipeline from trigger_queue has messages"})
    given: list[tuple[Path_, Any]] = [(("apply", "ddl"), apply.get("ddl"))]
    for name, table in document.mapping("apply", "tables").items():
        given.append((("apply", "tables", name, "ddl"), table.get("ddl") if isinstance(table, dict) else None))
    given.append((("apply", "handlers", "ddl"), document.value("apply", "handlers", "ddl")))
    for path, policy in given:
        if policy not in (None, "ignore") and document.value("capture", "source") not in told_of_ddl:
            faults.append(document.fault(path, f"only a pipeline from {' or '.join(told_of_ddl)} is told of DDL"))
    return faults


TRIGGER_QUEUE = SourceKind("trigger_queue", "by triggers", check_trigger_queue, connects_to="database", tells_ddl=True)
