"""Asking a database without keeping the page's server waiting, or the program from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from penstock.errors import RetryableError

_P = ParamSpec("_P")
_R = TypeVar("_R")

_PATIENCE_S = 20.0
"""How long a page waits for an answer; a table may be locked for as long as somebody likes."""

_AT_ONCE = 16

_slots = threading.BoundedSemaphore(_AT_ONCE)


async def in_thread(work: Callable[_P, _R], *args: _P.args, **more: _P.kwargs) -> _R:
    """Do some work in a thread that does not keep the program from ending, and return its result.

    Raises:
        RetryableError: It takes too long. It goes on, and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_R] = loop.create_future()

    def settle(result: _R | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def do() -> None:
        result, error = None, None
        try:
            result = work(*args, **more)
        except Exception as exc:
            error = exc
        finally:
            _slots.release()
        # The server may have ended meanwhile.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    if not _slots.acquire(blocking=False):
        raise RetryableError("too many pages wait for an answer", do="look under At work for what they wait for")
    threading.Thread(target=do, name="page asks", daemon=True).start()
    try:
        return await asyncio.wait_for(done, _PATIENCE_S)
    except TimeoutError:
        raise RetryableError(
            f"there was no answer in {_PATIENCE_S:.0f} s",
            do="look under At work for what it waits for",
        ) from None
