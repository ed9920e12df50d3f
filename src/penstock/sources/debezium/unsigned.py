"""BIGINT UNSIGNED that nothing tells of: in the connector's default mode values from 2^63 on arrive below zero."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from penstock.formats.debezium.decode import DataEvent
from penstock.formats.debezium.source_types import SourceColumn
from penstock.logical import Kind, LogicalType

_DIGITS = 20
"""So many an unsigned number of 64 bits has; a column that takes them was made for it, or for more."""


def below_zero(event: DataEvent, told: Mapping[str, SourceColumn]) -> set[str]:
    """Return the columns of a row that hold a number of 64 bits below zero, and that nothing tells to have a sign.

    Args:
        told: What is told of its columns beside its schema.
    """
    if event.row_type is None:
        return set()
    row = event.after or event.before or {}
    wide = [c.name for c in event.row_type.columns if c.logical.kind is Kind.INTEGER and c.logical.bits == 64]
    return {name for name in wide if (row.get(name) or "").startswith("-")} - told.keys()


def below_zero_of_plain(rows: Collection[Mapping[str, Any]], told: Mapping[str, SourceColumn]) -> set[str]:
    """Return the same of rows without a schema, as the parser left them."""
    return {name for row in rows for name, value in row.items() if type(value) is int and value < 0} - told.keys()


def is_for_unsigned(there: LogicalType) -> bool:
    """Whether a column of the target was made for such numbers."""
    digits = None if there.precision is None else there.precision - (there.scale or 0)
    return there.kind is Kind.DECIMAL and there.scale == 0 and digits is not None and digits >= _DIGITS
