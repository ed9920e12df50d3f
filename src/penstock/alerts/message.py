"""One message to a person, and its forms. It never holds a row value or a secret."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

VERSION = 1


class Kind(StrEnum):
    """What a message is about. The names stay: receivers are built on them; docs/monitoring.md lists them."""

    ERROR_QUEUE = "error_queue"
    RUN = "run"
    SERVER_LOST = "server_lost"
    LOG_HELD = "log_held"
    LOG_GIVEN_UP = "log_given_up"


class State(StrEnum):
    """Whether a person is needed."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True)
class Message:
    """What is sent.

    Attributes:
        text: For a person, in one line.
        count: How many events it stands for.
        facts: The same for programs, as plain data.
        id: The same on every attempt to send it.
    """

    pipeline: str
    kind: Kind
    state: State
    text: str
    count: int = 1
    facts: Mapping[str, object] = field(default_factory=dict)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def to_json(self) -> bytes:
        """The message as a JSON object; an interface, see docs/monitoring.md."""
        plain = {
            "version": VERSION,
            "id": self.id,
            "pipeline": self.pipeline,
            "kind": self.kind,
            "state": self.state,
            "text": self.text,
            "count": self.count,
            "at": self.at.isoformat(timespec="milliseconds"),
            "facts": dict(self.facts),
        }
        return json.dumps(plain).encode()

    def to_slack(self) -> bytes:
        """The message as Slack's incoming webhooks take it, and Mattermost's."""
        mark = ":rotating_light:" if self.state is State.FIRING else ":white_check_mark:"
        # Slack reads commands between < and >: a table may be called <!channel>.
        text = self.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return json.dumps({"text": f"{mark} *{self.pipeline}*: {text}"}).encode()
