"""What a column's values are, whatever the database: the own small vocabulary of this package."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The family of a type; `values` says how each is written."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    STRING = "string"
    BINARY = "binary"
    BITS = "bits"
    DATE = "date"
    TIME = "time"
    TIMETZ = "timetz"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    INTERVAL = "interval"
    JSON = "json"
    UUID = "uuid"
    XML = "xml"
    ENUM = "enum"
    ARRAY = "array"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LogicalType:
    """One type.

    Attributes:
        size: Bits of an integer or a float, length of bits or of a string, digits of a decimal, digits of the fraction
            of a second; None where the source does not say.
        scale: Digits after the point of a decimal.
        labels: Those of an enum.
        element: What an array holds.
        name: The source's own word, where no other kind fits.
    """

    kind: Kind
    size: int | None = None
    scale: int | None = None
    labels: tuple[str, ...] = ()
    element: LogicalType | None = None
    name: str = ""
