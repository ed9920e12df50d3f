"""The part `connections` of a pipeline file: databases and Kafka clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator

from penstock.config.parts import ConfigPart, plain_text


class ConnectionConfig(ConfigPart):
    """A database."""

    type: Literal["postgres"] = Field(description="Kind of database")
    url: str = Field(description="libpq url or conninfo; secrets only as ${env:NAME} or ${file:path}", repr=False)


class KafkaConfig(ConfigPart):
    """A Kafka cluster."""

    type: Literal["kafka"] = Field(description="Kind of connection")
    settings: dict[str, str | int | float | bool] = Field(
        description="librdkafka's own settings, bootstrap.servers at least; secrets only as ${env:NAME} or"
        " ${file:path}",
        repr=False,
    )

    @field_validator("settings")
    @classmethod
    def _has_servers(cls, settings: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        if not str(settings.get("bootstrap.servers", "")).strip():
            raise ValueError("bootstrap.servers is missing: host:port of one broker or more")
        return settings

    @property
    def client_settings(self) -> Mapping[str, str]:
        """The settings as the client takes them."""
        return {name: plain_text(value) for name, value in self.settings.items()}
