"""The part `registry` of change events in a pipeline file: a schema registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from penstock.config.parts import ConfigPart, below

if TYPE_CHECKING:
    from penstock.schema_registry import Registry


class SchemaRegistry(ConfigPart):
    """A schema registry that speaks Confluent's HTTP API, for events in Avro."""

    url: str = Field(description="http(s)://host:port; user and password stand beside it")
    user: str | None = Field(default=None, min_length=1, description="Who asks, where the registry wants to know")
    password: str | None = Field(
        default=None, min_length=1, description="Of the user; only as ${env:NAME} or ${file:path}", repr=False
    )
    ca_file: str | None = Field(
        default=None,
        min_length=1,
        description="Certificates (PEM) of the authorities to trust instead of the system's; may lie below the folder"
        " of this file",
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_sound = False
        if not is_sound:
            raise ValueError("is not http://host:port or https://host:port")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("holds more than a place; user and password are settings of their own")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _has_both(self) -> SchemaRegistry:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password go together")
        return self

    def below(self, folder: Path) -> SchemaRegistry:
        """The same registry, whose `ca_file` is taken from a folder."""
        if self.ca_file is None:
            return self
        return self.model_copy(update={"ca_file": below(folder, self.ca_file)})

    def open(self) -> Registry:
        """The registry; tasks need not have the file of its authority.

        Raises:
            ConfigError: That file cannot be read, or holds no certificates.
        """
        # HTTP and TLS are needed by those alone that have a registry.
        from penstock.schema_registry import Registry, read_authorities

        ca_pem = None if self.ca_file is None else read_authorities(Path(self.ca_file))
        return Registry(self.url, self.user, self.password, ca_pem)
