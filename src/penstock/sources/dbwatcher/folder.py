"""A folder of files with messages, which are read in the order of the files' names.

A file holds one message, or several one behind the other. It is put in place whole, never changed, and has a name above
all others that are there. The position of a message is its number among all messages of the folder.
"""

from __future__ import annotations

import hashlib
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from penstock.formats.dbwatcher.files import split, split_pieces
from penstock.history import RESYNC, HistoryError
from penstock.position import START, Scn
from penstock.sources.dbwatcher.messages import DIGEST_BYTES, MessageLog, Place, StoredMessage, digest_of
from penstock.sources.numbered_files import refuse_gaps, refuse_other_order
from penstock.storage import MissingFileError, Storage
from penstock.text import are, count

_SUFFIX = ".xml"


class _File(NamedTuple):
    """A file that was met.

    Attributes:
        last: The position of its last message.
        size: In bytes.
        chain: A digest of the names and contents of all files up to this one.
    """

    name: str
    last: int
    size: int
    chain: bytes


@dataclass(frozen=True)
class FolderMessages(MessageLog):
    """Messages in the files of a folder.

    Attributes:
        most_bytes: A message that has more is not read whole.
    """

    storage: Storage
    most_bytes: int = 1 << 26
    # Those that were met, in their order.
    _files: list[_File] = field(default_factory=list, compare=False, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        # Tasks are told where what they read lies.
        return FolderMessages, (self.storage, self.most_bytes)

    @property
    def label(self) -> str:
        """The folder."""
        return self.storage.label

    @property
    def id(self) -> str:
        """That of the folder, by its place: messages do not say where they belong."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, self.storage.label))

    def later(self, after: Scn) -> Iterator[StoredMessage]:
        """Yield the messages behind a position that are there now, in order."""
        names = self._names()
        self._refuse_growth()
        known = bisect_left(self._files, int(after) + 1, key=lambda file: file.last)
        for file in list(self._files[known:]):
            yield from (message for message in self._messages(file.name) if message.place.position > after)
        for name in names[len(self._files) :]:
            yield from list(self._messages(name))

    def read(self, places: Iterable[Place]) -> Iterator[StoredMessage]:
        """Yield the messages at some places, in the order of these."""
        name, at_us = "", 0
        bodies: Sequence[bytes] = ()
        for place in places:
            if place.file != name:
                name, (bodies, _, _) = place.file, self._content(place.file)
                at_us = self.storage.written_at_us(name)
            body = bodies[place.number] if place.number < len(bodies) else b""
            if digest_of(body) != place.digest:
                raise _changed(f"file {name} was read, and holds something else now", self.label)
            yield StoredMessage(place, _where(self.label, name, place.number, len(bodies)), body, {}, at_us)

    def proof_at(self, position: Scn, open_since: Scn | None) -> str:
        """Return how many files there are up to the one of a position, a digest of them, and its name."""
        if position <= START:
            return ""
        self._know(position)
        at = bisect_left(self._files, int(position), key=lambda file: file.last)
        if at == len(self._files):
            return ""
        file = self._files[at]
        return f"{at + 1}:{file.chain.hex()}:{quote(file.name)}"

    def hold_against(self, proof: str, position: Scn) -> None:
        """Make sure that the files up to the one of a position are those that were read."""
        said, digest, quoted = proof.split(":")
        read = int(said)
        self._know(position)
        before = [file for file in self._files if quote(file.name) == quoted]
        at = next((number for number, file in enumerate(self._files, 1) if file in before), 0)
        if at != read:
            there = f"the file {quoted} that was read last" if at else f"file {quoted}, the last one that was read,"
            what = f"is number {at} now, and was number {read}" if at else "is not there any more"
            raise _changed(f"{there} {what}", self.label)
        if before[0].chain.hex() != digest:
            what = f"of {count(read, 'file')} up to {quoted}, which {are(2) if read > 1 else are(1)} read"
            raise _changed(f"{what}, one holds something else now, or has another name", self.label)

    def _know(self, position: Scn) -> None:
        """Meet the files up to a position."""
        if not self._files or self._files[-1].last < position:
            for message in self.later(Scn(self._files[-1].last if self._files else START)):
                if message.place.position >= position:
                    break

    def _refuse_growth(self) -> None:
        """Make sure that the last file was whole when it was read; nobody would read what it has got since."""
        if self._files and self.storage.size(self._files[-1].name) != self._files[-1].size:
            raise _changed(f"file {self._files[-1].name} was read, and holds something else now", self.label)

    def _names(self) -> Sequence[str]:
        """Return the names of all files; those that were met before are the first of them."""
        # A folder that is filled meanwhile may be listed without a file, but with a later one. What came before the
        # last file of this list is in the next list for certain.
        last_listed = max((name for name in self.storage.names("") if name.endswith(_SUFFIX)), default="")
        names = sorted(n for n in self.storage.names("") if n.endswith(_SUFFIX) and n <= last_listed)
        known = [file.name for file in self._files]
        if len(names) > len(known):
            refuse_gaps(names, self.label)
            refuse_other_order(names, self.label)
        if names[: len(known)] != known:
            if gone := sorted(set(known) - set(names)):
                raise _changed(f"file {gone[0]} was read, and is not there any more", self.label)
            below = next(name for name in names if name not in known)
            raise _changed(f"file {below} came below those that were read, up to {known[-1]}", self.label)
        return names

    def _messages(self, name: str) -> Iterator[StoredMessage]:
        """Yield the messages of a file; one that is met for the first time is remembered."""
        bodies, digest, size = self._content(name)
        at = bisect_left(self._files, name, key=lambda file: file.name)
        first = (self._files[at - 1].last if at else START) + 1
        if at == len(self._files):
            chain = self._files[-1].chain if self._files else b""
            told = b"\0".join((chain, name.encode(), digest))
            self._files.append(_File(name, first + len(bodies) - 1, size, digest_of(told)))
        at_us = self.storage.written_at_us(name)
        for number, body in enumerate(bodies):
            place = Place(Scn(first + number), name, number, digest if len(body) == size else digest_of(body))
            yield StoredMessage(place, _where(self.label, name, number, len(bodies)), body, {}, at_us)

    def _content(self, name: str) -> tuple[Sequence[bytes], bytes, int]:
        """Return the messages of a file, a digest of the file, and its size."""
        try:
            if (self.storage.size(name) or 0) <= self.most_bytes:
                content = self.storage.read(name)
                return split(content), digest_of(content), len(content)
            size = 0
            hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)

            def pieces() -> Iterator[bytes]:
                nonlocal size
                for piece in self.storage.read_pieces(name):
                    hasher.update(piece)
                    size += len(piece)
                    yield piece

            # One of the messages may be larger than memory.
            bodies = list(split_pieces(pieces(), self.most_bytes))
            return bodies, hasher.digest(), size
        except MissingFileError as exc:
            raise _changed(f"file {name} was read, and is not there any more", self.label) from exc


def _where(label: str, name: str, number: int, of: int) -> str:
    return f"{label}/{name}" if of == 1 else f"{label}/{name}, message {number + 1}"


def _changed(what: str, where: str) -> HistoryError:
    return HistoryError(
        f"{what}: files appear in the order of their names, whole, and stay as they are",
        where=where,
        do=f"put the files back as they were, and add new ones behind them; or {RESYNC} from what is there",
    )
