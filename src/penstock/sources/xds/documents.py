"""A folder of XDS documents, each named by a number: a number is the position of all that its document says."""

from __future__ import annotations

import hashlib
import itertools
import logging
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import OperatorError
from penstock.events import Event, tell
from penstock.history import RESYNC, HistoryError
from penstock.position import Scn
from penstock.storage import Storage

_SUFFIX = ".xml"
_MOST_DIGITS = 19
_LAST = 2**63 - 1

_KEPT_NUMBERS = 50
"""So many of the last documents' numbers are kept with a position."""

_DIGEST_BEGINS = 6
"""So many characters of the digests of all but the last of them."""


@dataclass
class Documents:
    """The documents of a folder. A file is put in place whole, never altered, and above all numbers that are there."""

    storage: Storage
    _told: set[str] = field(default_factory=set)
    _seen: dict[int, str] = field(default_factory=dict)
    _digests: dict[int, str] = field(default_factory=dict)

    def numbered(self) -> Sequence[tuple[Scn, str]]:
        """Return the number and the name of each document, by their numbers.

        A name that is not a number is logged once, and left out.

        Raises:
            OperatorError: Two documents have one number; or, since the last call, one came below one that was there, or
                the last one went.
        """
        # A folder that is filled meanwhile may be told without a file, but with a later one. What came before the last
        # file of this list is in the next list for certain.
        last_listed = max(filter(None, map(_number, self.storage.names(""))), default=0)
        found: dict[int, str] = {}
        for name in sorted(self.storage.names("")):
            number = _number(name)
            if number is None:
                self._tell(name)
            elif number > last_listed:
                continue
            elif number in found:
                raise OperatorError(
                    f"documents {found[number]} and {name} have the same number",
                    where=self.storage.label,
                    do="give one of them a number of its own; documents are read in the order of their numbers",
                )
            else:
                found[number] = name
        last = max(self._seen, default=0)
        if max(found, default=0) < last:
            # Begun anew, it would be read from the old position on, and what lies before that never.
            raise OperatorError(
                f"document {self._seen[last]}, the last one, is not there any more, and none has a higher number",
                where=self.storage.label,
                do=f"bring it back, or give documents higher numbers; for a folder that is begun anew, {RESYNC}",
            )
        late = min((number for number in found if number < last and number not in self._seen), default=None)
        if late is not None:
            raise OperatorError(
                f"document {found[late]} came behind {self._seen[last]}, which has a higher number: it is never read by"
                " this number, also not after a restart",
                where=self.storage.label,
                do="give it a number above all others; documents are read in the order of their numbers",
            )
        self._seen = found
        return [(Scn(number), name) for number, name in sorted(found.items())]

    def proof_at(self, position: Scn) -> str:
        """Return what the documents up to a position are known by.

        Of the last one its digest and its number, how many there are, and the numbers of the last ones before it, each
        with the beginning of its digest. Those may be taken away later; none may come between or instead of them.
        """
        numbers = [number for number, _ in self._listed() if number <= position]
        if not numbers:
            return ""
        last = numbers[-_KEPT_NUMBERS:]
        self._digests = {number: self._digests.get(number) or self._digest(number) for number in last}
        # As steps down from the last one: most are small.
        steps = [f"{b - a}.{self._digests[a][:_DIGEST_BEGINS]}" for a, b in itertools.pairwise(last)]
        return ",".join(map(str, [self._digests[last[-1]], len(numbers), last[-1], *reversed(steps)]))

    def hold_against(self, proof: str, position: Scn) -> None:
        """Make sure that no document came below a position, or was altered, since `proof_at` it.

        Raises:
            HistoryError: One did.
        """
        digest, counted, last, *before = proof.split(",")
        # Proofs of earlier versions have no digests here.
        steps, digests = zip(*(one.partition(".")[::2] for one in before), strict=True) if before else ((), ())
        known = list(itertools.accumulate(map(int, steps), operator.sub, initial=int(last)))
        there = {number: name for number, name in self._listed() if number <= position}
        late = [number for number in there if number > known[-1] and number not in known]
        # Of those that are not known by their numbers some may be gone, but there are not more than there were.
        below = [number for number in there if number < known[-1]]
        if late or len(below) > int(counted) - len(known):
            raise HistoryError(
                f"document {there[(late or below)[0]]}, or one near it, came since {last} was read, whose number is"
                " higher: it was not read",
                where=self.storage.label,
                do="give it a number above all others; documents are read in the order of their numbers",
            )
        for number, begins in zip(known, (digest, *digests), strict=True):
            if begins and number in there and not self._digest(number).startswith(begins):
                raise HistoryError(
                    f"document {there[Scn(number)]} was read, and holds something else now",
                    where=self.storage.label,
                    do=f"bring back what it held, and put what is new into a document of its own; or {RESYNC}",
                )

    def _listed(self) -> Sequence[tuple[Scn, str]]:
        if not self._seen:
            return self.numbered()
        return [(Scn(number), name) for number, name in sorted(self._seen.items())]

    def _digest(self, number: int) -> str:
        name = self._seen.get(number)
        return "" if name is None else hashlib.sha256(self.storage.read(name)).hexdigest()[:16]

    def _tell(self, name: str) -> None:
        if name in self._told or not name.endswith(_SUFFIX):
            return
        self._told.add(name)
        text = f"file {name} is not read: its name is not a number from 1 on, by which documents are read in order"
        tell(Event.NOTE, f"{text} ({self.storage.label})", {"file": name}, level=logging.WARNING)


def _number(name: str) -> int | None:
    text = name.removesuffix(_SUFFIX)
    if text == name or not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        return None
    return int(text) if 0 < int(text) <= _LAST else None
