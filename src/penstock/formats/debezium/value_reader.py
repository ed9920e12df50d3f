"""What a reader of values is, and how it refuses one.

A reader is a function that takes one value that is not null, as the parser left it, and returns its canonical text
(`penstock.values`). It is made once for a column. Bytes may come as base64 (JSON) or as they are (Avro), numbers also
as `numbers.Number`.

A reader raises `UnfitError`, or another `ValueError`, with a text that goes on from "the value of column c ..." and
holds nothing of the value; or `InexactError` where a number was parsed to a float although its digits matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Reader: TypeAlias = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class WholeReader:
    """A reader that takes whole numbers many at once, which is quicker.

    Attributes:
        read: Reads one value, whatever it is.
        low, high: The smallest and the largest number that `many` takes.
        many: Reads such numbers; each comes out as `read` returns it.
    """

    read: Reader
    low: int
    high: int
    many: Callable[[Sequence[int]], Iterable[str]]

    def __call__(self, value: Any) -> str:
        """Read one value."""
        return self.read(value)


def column_texts(read: Reader, values: Sequence[Any]) -> Iterable[str | None]:
    """Read many values of one column, which may be null; the same as one by one, and quicker."""
    if (
        isinstance(read, WholeReader)
        and set(map(type, values)) == {int}
        and read.low <= min(values)
        and max(values) <= read.high
    ):
        return read.many(values)
    return [None if value is None else read(value) for value in values]


class UnfitError(ValueError):
    """A value that its type cannot hold."""


class InexactError(Exception):
    """A number lost digits on its way through a float; parse the message again, with `Number`."""
