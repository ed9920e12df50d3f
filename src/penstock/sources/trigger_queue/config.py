"""What goes with `capture.source: trigger_queue` in a pipeline file, and with no other source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.config.document import Document, Fault, Path_
from penstock.config.source import SourceKind


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
    faults = document.unfit({"capture.log": "only a capture by triggers has a log at the source that is freed"})
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
