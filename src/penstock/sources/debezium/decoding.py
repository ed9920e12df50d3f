"""The settings of change events, as the decoder takes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.change import TableName
from penstock.errors import ConfigError
from penstock.formats.debezium.declared import DeclaredModes
from penstock.formats.debezium.decode import BeforeImage, DecodeSettings
from penstock.formats.debezium.envelope import Topics
from penstock.formats.debezium.samples import row_schemas
from penstock.formats.debezium.source_types import check_type
from penstock.sources.debezium.config import DebeziumConfig


def decode_settings(config: DebeziumConfig) -> DecodeSettings:
    """What events do not say of themselves.

    Raises:
        ConfigError: A type of a column is none, or a file that the settings name cannot be read.
        MalformedInputError: A line of the sample is not an event.
    """
    written = frozenset(config.model_fields_set & {"decimals", "binary"})
    # Columns of arrays are made as such at the target, and PostgreSQL reads its own form of them alone.
    modes = DeclaredModes(config.decimals, config.times, config.binary, arrays="postgres", written=written)
    for table, types in config.columns.items():
        for name, text in types.items():
            try:
                check_type(text, modes)
            except ValueError as exc:
                raise ConfigError(f"capture.debezium.columns: {table}: {name} {exc}") from None
    return DecodeSettings(
        columns=config.columns,
        samples={} if config.schema_sample is None else _samples(config.schema_sample),
        placeholder=config.placeholder,
        before_image=BeforeImage(config.before_image),
        modes=modes,
        topics=Topics(transaction=(config.transactions,)),
        schema_of=None if config.registry is None else config.registry.open().schema,
    )


def _samples(path: str) -> Mapping[TableName, str]:
    """The schemas of rows that a file of events has."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as exc:
        raise ConfigError(f"capture.debezium.schema_sample: {path}: {exc.strerror}") from exc
    return row_schemas(lines, file=path)
