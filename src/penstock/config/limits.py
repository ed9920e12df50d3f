"""Numbers of a pipeline file that may also be INFINITE."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.apply.parameters import INFINITE, MOST


def _within(least: int, most: int, value: object) -> object:
    """Say in one sentence what else would be said once for each type of the two."""
    if value == INFINITE or (type(value) is int and least <= value <= most):
        return value
    raise ValueError(f"must be an integer from {least} to {most}, or {INFINITE}")


Limit = Annotated[
    Annotated[int, Field(ge=1, le=MOST)] | Literal["INFINITE"], BeforeValidator(partial(_within, 1, MOST))
]


Seconds = Annotated[
    Annotated[int, Field(ge=0, le=MOST)] | Literal["INFINITE"], BeforeValidator(partial(_within, 0, MOST))
]


Position = Annotated[
    Annotated[int, Field(ge=1, lt=2**63)] | Literal["INFINITE"], BeforeValidator(partial(_within, 1, 2**63 - 1))
]


def _seconds(value: object) -> object:
    """Say in one sentence what else would be said once for each type of the two."""
    if value == INFINITE:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST:
        return value
    raise ValueError(f"must be a number of seconds from 0 on, or {INFINITE}")


RetryS = Annotated[Annotated[float, Field(ge=0)] | Literal["INFINITE"], BeforeValidator(_seconds)]
"""How long to go on trying."""


def retry_limit(seconds: float | str) -> float | None:
    """How long to go on trying, as apply takes it; None: without end."""
    return None if isinstance(seconds, str) else seconds


def finite(limit: int | str) -> int | None:
    """A limit as apply takes it; None: without end."""
    return limit if isinstance(limit, int) else None
