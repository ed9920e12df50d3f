"""Rules for alterations of tables: their columns go by the names that they have at the target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.change import Image


def with_names(image: Image, was: Mapping[str, str] | None, now: Mapping[str, str] | None) -> Image:
    """Give the columns of a change of DDL the names that rules give them; those without one are left out.

    Args:
        was: For each column of the version before, by its name at the source, what it is called; None: the same.
        now: The same for the version after.
    """
    return {**image, "was": _named(image["was"], was), "is": _named(image["is"], now)}


def _named(text: str | None, names: Mapping[str, str] | None) -> str | None:
    if text is None or names is None:
        return text
    shape: dict[str, Any] = json.loads(text)
    shape["columns"] = {
        number: {**column, "name": names[column["name"]]}
        for number, column in shape["columns"].items()
        if column["name"] in names
    }
    return json.dumps(shape, ensure_ascii=False)
