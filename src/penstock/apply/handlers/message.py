"""Messages as a handler sees them: what an application said at the source in the midst of a transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from penstock.apply.apply_errors import MESSAGE_UNHANDLED, ApplyError
from penstock.apply.handlers.lcr import ChangeOrigin
from penstock.change import Change


@dataclass(frozen=True)
class UserMessage:
    """A message, at its place among the changes of its transaction.

    Attributes:
        kind: What sort of message it is, as the application calls it.
        content: What it says; None where the application gave NULL.
        number: Its place in the transaction, from 1.
        source: The name of the source in the pipeline file.
        commit_scn: The position of the transaction at the source.
        txn_id: The source's own id of it.
        committed_at: When it was committed at the source, where that is known.
    """

    kind: str
    content: str | None = field(repr=False)
    number: int
    source: str
    commit_scn: int
    txn_id: str
    committed_at: datetime | None


def message_of(change: Change, number: int, origin: ChangeOrigin) -> UserMessage:
    """The message that stands in the place of a change."""
    said = change.before or {}
    return UserMessage(
        kind=said.get("kind") or "",
        content=said.get("content"),
        number=number,
        source=origin.source,
        commit_scn=origin.commit_scn,
        txn_id=origin.txn_id,
        committed_at=origin.committed_at,
    )


def unhandled(change: Change) -> ApplyError:
    """What is wrong with a message that nobody takes. It may say anything but its kind."""
    kind = (change.before or {}).get("kind")
    what = f"a message of kind {kind!r} came, and no handler takes messages: name one as handlers.message, and retry"
    return ApplyError(MESSAGE_UNHANDLED, what)
