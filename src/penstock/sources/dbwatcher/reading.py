"""How messages are read, as a pipeline file says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """How messages are read, as the pipeline file says.

    Attributes:
        default_schema: Of tables of which a message names none.
        most_bytes: Of the XML of a message.
        puts_aside: A message that cannot be read goes to the error queue; otherwise the run stops at it.
        accepts_missing: Numbers of messages may have gaps; otherwise the run stops at one.
        applies_statement_rows: The rows that a statement has changed are applied; otherwise it is refused.
    """

    default_schema: str = "public"
    most_bytes: int = 1 << 26
    puts_aside: bool = False
    applies_statement_rows: bool = False
    accepts_missing: bool = False
