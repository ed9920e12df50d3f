"""The part `on_error` of a pipeline file: who is told when a run needs a person."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from penstock.config.parts import ConfigPart


class BodyFormat(StrEnum):
    """The form of a webhook's body."""

    JSON = "json"
    SLACK = "slack"


class OnErrorConfig(ConfigPart):
    """A command that is started, or a webhook that is called."""

    command: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="A program and its arguments; each message is one JSON object on its standard input"
    )
    url: str | None = Field(
        default=None,
        repr=False,
        description="Instead of command: a webhook, http or https, that each message is sent to by POST",
    )
    format: BodyFormat = Field(
        default=BodyFormat.JSON,
        description="json: the message as a JSON object; slack: as Slack's incoming webhooks take it",
    )
    secret: str | None = Field(
        default=None,
        repr=False,
        min_length=8,
        description="What requests are signed with, HMAC-SHA256 over time and body; as ${env:NAME} or ${file:path}",
    )
    timeout_s: float = Field(
        default=10, gt=0, le=60, description="How many seconds the command, or the webhook, may take"
    )
    every_s: float = Field(
        default=300, ge=1, description="Of what goes on for longer there is at most one message in so many seconds"
    )

    @field_validator("url")
    @classmethod
    def _is_web(cls, url: str | None) -> str | None:
        # What is wrong is said without the url, which may be a secret.
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            is_whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
            # Refuses what no name server could be asked for.
            (parts.hostname or "").encode("idna")
        except ValueError:
            is_whole = False
            parts = None
        if (
            parts is None
            or not is_whole
            or parts.scheme not in ("http", "https")
            or not url.isprintable()
            or " " in url
        ):
            raise ValueError("must be the whole url of a webhook, http://host/path or https://host/path")
        if parts.username is not None or parts.password is not None:
            raise ValueError("holds a user or a password before the host; sign requests with `secret` instead")
        if not (parts.path + parts.query).isascii():
            raise ValueError(
                "holds letters after the host that are not ASCII; write them percent-encoded, as in %C3%A4"
            )
        return url

    @model_validator(mode="after")
    def _has_one_receiver(self) -> OnErrorConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either command or url")
        if self.command is not None and (self.secret is not None or self.format is not BodyFormat.JSON):
            raise ValueError("format and secret go with url")
        return self
