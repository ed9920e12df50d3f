"""REPL_KEY and TRANS_KEY of what is published: by the position, so that they are the same whoever publishes it."""

from __future__ import annotations

from penstock.change import TableName
from penstock.errors import OperatorError

NUMBER_BITS = 26
"""How many of the lower bits of a REPL_KEY count changes: with these, 64 bits hold 137 billion positions."""

MOST_CHANGES = (1 << NUMBER_BITS) - 2


def repl_key(scn: int, number: int) -> int:
    """The REPL_KEY of a change of the transaction at a position; `number` counts its changes from 1.

    Raises:
        OperatorError: The transaction has too many.
    """
    if number > MOST_CHANGES:
        raise OperatorError(
            f"a transaction has more than {MOST_CHANGES:,} changes, for which there are no REPL_KEYs",
            where=f"position {scn}",
            do="leave tables out by rules.exclude, or copy them anew",
        )
    return (scn << NUMBER_BITS) + number


def copy_key(at: int) -> int:
    """The REPL_KEY of rows of a copy: behind all changes up to the position that they are as of."""
    return repl_key(at, MOST_CHANGES) + 1


def copy_id(at: int, table: TableName, number: int = 0) -> str:
    """TRANS_KEY of the rows of a table's copy, which no other table's has, nor another copy of it.

    Args:
        number: Tells copies as of the same position apart, which receivers would take for repeats of each other.
    """
    numbered = f"{at}-{number}" if number else str(at)
    return f"copy.{numbered}.{table.key}"
