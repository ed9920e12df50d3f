"""What a worker keeps open from one task to the next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST = 8


class LastUsed(Generic[K, V]):
    """The last few values that were used, by their keys; what gives way to another is closed.

    A process that serves one pipeline after the other would hold the sessions of all of them, until it has no file
    descriptors left, or none that `select` takes.
    """

    def __init__(self, close: Callable[[V], object], *, most: int = _MOST) -> None:
        """Keep so many at most; none yet."""
        self._close = close
        self._most = most
        self._kept: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return what is kept of a key, which is the last one used now."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: K, value: V) -> V:
        """Keep a value, in the place of another of its key, which is closed; returns it."""
        before = self._kept.pop(key, None)
        self._kept[key] = value
        gone = [] if before is None or before is value else [before]
        if len(self._kept) > self._most:
            gone.append(self._kept.popitem(last=False)[1])
        for one in gone:
            self._close(one)
        return value
