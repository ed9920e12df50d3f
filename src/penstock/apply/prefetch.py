"""Working ahead: the next item is made in a thread of its own while this one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")

_END = object()


def ahead(items: Iterable[T], *, depth: int = 1) -> Generator[T, None, None]:
    """Yield the same items; at most `depth` of them wait to be asked for while one more is made.

    An error in making an item is raised where that item would have come. When the consumer leaves early the
    thread ends after the item it is at.
    """
    made: queue.Queue[object] = queue.Queue(depth)
    is_left = threading.Event()

    def put(item: object) -> bool:
        while not is_left.is_set():
            try:
                made.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def make() -> None:
        try:
            for item in items:
                if not put(item):
                    return
        except BaseException as exc:  # it belongs to the consumer
            put(_Failure(exc))
        else:
            put(_END)
        finally:
            if isinstance(items, Generator):
                # Close the generator now, not when it is collected: it holds connections open.
                items.close()

    thread = threading.Thread(target=make, name="ahead", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not _END:
            if isinstance(item, _Failure):
                raise item.error
            yield item  # type: ignore[misc]  # put() is only ever given what `items` yields
    finally:
        is_left.set()
        thread.join()


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error
