"""Events as XDS elements in rows, for those who read them as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa

ELEMENTS = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("record_ids", pa.list_(pa.int64()), nullable=False),
        pa.field("logged_at", pa.timestamp("us", tz="UTC")),
        pa.field("event", pa.string(), nullable=False),
    ]
)
"""An event's position, the rows behind it, when the first of them was logged, and its element."""

Row = tuple[int, Sequence[int], int, str]
"""Position, record_ids, microseconds since 1970, element."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def batch_of(rows: Iterable[Row]) -> pa.RecordBatch:
    """Return rows as a batch."""
    named = [
        {
            "position": position,
            "record_ids": list(record_ids),
            "logged_at": _EPOCH + timedelta(microseconds=at_us),
            "event": element,
        }
        for position, record_ids, at_us, element in rows
    ]
    return pa.RecordBatch.from_pylist(named, ELEMENTS)
