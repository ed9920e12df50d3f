"""Positions in a log: the number of a file, and the offset of a record in it. They need no index to be found again."""

from __future__ import annotations

import re

from penstock.position import START, Scn
from penstock.sources.db2_log.framing import LogRecord

FILE_NAME = re.compile(r"([0-9]{1,9})\.db2log")
OFFSET_BITS = 32


def position_of(record: LogRecord) -> Scn:
    """Return the position of a record."""
    number = FILE_NAME.fullmatch(record.name.rpartition("/")[2])
    return Scn(((int(number[1]) if number else int(START)) << OFFSET_BITS) + record.offset)


def file_of(position: int) -> tuple[int, int]:
    """Return the number of the file that a position lies in, and the offset there."""
    return position >> OFFSET_BITS, position & ((1 << OFFSET_BITS) - 1)
