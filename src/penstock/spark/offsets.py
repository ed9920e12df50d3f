"""Offsets of our streams: a position, what it is a position in, and a digest of what had been read up to it.

Without the digest, a stream would go on in another history that has the same positions: one that was restored from an
older backup, and written to since. Offsets of an earlier version have none; they are read as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import MalformedInputError, OperatorError
from penstock.position import Scn


@dataclass(frozen=True)
class StreamOffsets:
    """What the offsets of one kind of stream are like.

    Attributes:
        of: What a person calls what is read.
        whole: The member that has the id of what is read, and its word in errors.
        position: The member that has the position.
    """

    of: str
    whole: str
    position: str

    def write(self, id_: str, position: Scn, digest: str | None = None) -> dict[str, Any]:
        """Write a position as an offset that a person can read."""
        return {self.whole: id_, self.position: int(position), **({_DIGEST: digest} if digest else {})}

    def read(self, offset: dict[str, Any], id_: str, *, where: str) -> Scn:
        """Read the position that `write` wrote.

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

    def hold_against(self, offset: dict[str, Any], digest: str | None, *, where: str) -> None:
        """Make sure that what an offset says was read is what is there now.

        Args:
            digest: Of what is there up to the offset's position; None where that is not reached yet.

        Raises:
            OperatorError: It ends before that, or it is something else.
        """
        position = offset[self.position]
        if digest is None:
            raise OperatorError(
                f"the {self.whole} ends before position {position}, which the checkpoint has reached",
                where=where,
                do="wait until the copy has caught up, or bring back what is missing; it must stay as it was",
            )
        if offset.get(_DIGEST, digest) != digest:
            raise OperatorError(
                f"up to position {position}, which the checkpoint has reached, the {self.whole} is not what was read:"
                " an older state was restored, and something else was written behind it",
                where=where,
                do="bring back what was there; or begin the query anew, with another checkpoint and an empty sink",
            )


_DIGEST = "digest"
