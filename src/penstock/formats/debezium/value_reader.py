"""What a reader of values is, and how it refuses one.

A reader is a function that takes one value that is not null, as the parser left it, and returns its canonical text
(`penstock.values`). It is made once for a column. Bytes may come as base64 (JSON) or as they are (Avro), numbers also
as `numbers.Number`.

A reader raises `UnfitError`, or another `ValueError`, with a text that goes on from "the value of column c ..." and
holds nothing of the value; or `InexactError` where a number was parsed to a float although its digits matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Reader: TypeAlias = Callable[[Any], str]


class UnfitError(ValueError):
    """A value that its type cannot hold."""


class InexactError(Exception):
    """A number lost digits on its way through a float; parse the message again, with `Number`."""
