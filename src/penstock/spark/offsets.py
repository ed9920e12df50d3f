"""Offsets of our streams: a position, and what it is a position in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import MalformedInputError, OperatorError
from penstock.position import Scn


@dataclass(frozen=True)
class Offsets:
    """What the offsets of one kind of stream are like.

    Attributes:
        of: What a person calls what is read.
        whole: The member that has the id of what is read, and its word in errors.
        position: The member that has the position.
    """

    of: str
    whole: str
    position: str

    def write(self, id_: str, position: Scn) -> dict[str, Any]:
        """Write a position as an offset that a person can read."""
        return {self.whole: id_, self.position: int(position)}

    def read(self, offset: dict[str, Any], id_: str, *, where: str) -> Scn:
        """Read what `write` wrote.

        Raises:
            MalformedInputError: It is something else.
            OperatorError: It is a position in something else than `id_`, which lies at `where`.
        """
        position = offset.get(self.position) if isinstance(offset, dict) else None
        if type(position) is not int:
            what = f"offset of {self.of} must be {{'{self.whole}': text, '{self.position}': integer}}"
            raise MalformedInputError(what, where=repr(offset))
        if offset.get(self.whole) != id_:
            raise OperatorError(
                f"the checkpoint is of another {self.whole} than the one there",
                where=where,
                do="begin the query anew, with another checkpoint and an empty sink",
            )
        return Scn(position)
