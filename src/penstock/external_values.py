"""Values that are not in their image: too large for one, or appended to what the target holds.

In an image after a change such a value is an object, where every other value is a string or null. Whatever does not
know of it refuses the image; so no part of apply can take what is told about a value for the value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

_MEMBER = ",elsewhere"
"""No column whose name begins so is looked for by the text of an image, so none is found in what is told here."""

MARK = f':{{"{_MEMBER}":'
"""Is in an image that has such a value, and in no other: inside a JSON string its quotes would be escaped."""

_KINDS = ([str, int, bool, bool, type(None)], [type(None), int, bool, bool, str])
"""The place, the size in bytes, whether it is binary, whether it is appended, and text that has no place."""


class ExternalValue(str):
    """What an image tells of a value that it does not hold; as text, the JSON object that the image has."""

    __slots__ = ()

    @classmethod
    def at(cls, place: str, size_bytes: int, *, is_binary: bool, is_appended: bool = False) -> Self:
        """A value of so many bytes that the source finds again by `place`."""
        return cls._of([place, size_bytes, is_binary, is_appended, None])

    @classmethod
    def appending(cls, text: str, *, is_binary: bool) -> Self:
        """The value that the target has, and behind it what this canonical text is."""
        return cls._of([None, len(text), is_binary, True, text])

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Self:
        """Take what an image has; raises a `ValueError` where it tells of no value."""
        facts = told.get(_MEMBER)
        if len(told) != 1 or not isinstance(facts, list) or [type(fact) for fact in facts] not in _KINDS:
            raise ValueError("it is not told where a value is")
        return cls._of(facts)

    @classmethod
    def _of(cls, facts: Sequence[Any]) -> Self:
        return cls(json.dumps({_MEMBER: facts}, ensure_ascii=False, separators=(",", ":")))

    @property
    def told(self) -> Mapping[str, Any]:
        """The object that the image has."""
        told: Mapping[str, Any] = json.loads(self)
        return told

    @property
    def place(self) -> str | None:
        """Where the source finds it; None where it is here, as `text`."""
        place: str | None = self._facts[0]
        return place

    @property
    def text(self) -> str | None:
        """Canonical text that is appended."""
        text: str | None = self._facts[4]
        return text

    @property
    def size_bytes(self) -> int:
        """How many bytes it has at the source."""
        return int(self._facts[1])

    @property
    def is_binary(self) -> bool:
        """Whether it is bytes, and not text."""
        return bool(self._facts[2])

    @property
    def is_appended(self) -> bool:
        """Whether it comes behind the value that the target has, instead of in its place."""
        return bool(self._facts[3])

    @property
    def _facts(self) -> Sequence[Any]:
        facts: Sequence[Any] = self.told[_MEMBER]
        return facts


class ValueStore(Protocol):
    """Where a source's large values are; small enough to travel to tasks."""

    def pieces(self, place: str) -> Iterator[bytes]:
        """Yield the value at a place in pieces, none of them large: bytes of a binary, or of text in UTF-8.

        Raises:
            OperatorError: It is not there any more.
            MalformedInputError: What is there is not what was there.
        """
