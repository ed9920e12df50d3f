"""Renames and drops the columns of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import MalformedInputError
from penstock.images import are_plain, build_images, edit_images, find_present, parse_images

_MOST_EDITS = 6
"""Each column that is edited out of an image costs a look at all of it."""


@dataclass(frozen=True)
class ColumnMap:
    """Which of the source's columns the target has, in order, each with its name there.

    Attributes:
        names: The target's name of each column that is kept, by the source's.
        dropped: The source's other columns.
    """

    names: Mapping[str, str]
    dropped: tuple[str, ...]

    def reshape(self, images: pa.Array) -> pa.Array:
        """Leave out and rename columns; a null image stays null."""
        renamed = {name: new for name, new in self.names.items() if name != new}
        if not renamed and not self.dropped:
            return images
        if images.null_count == len(images):
            return images
        held = {*self.names, *self.dropped}
        can_edit = (
            len(self.dropped) + len(renamed) <= _MOST_EDITS
            and are_plain([*renamed, *renamed.values(), *self.dropped])
            # A name that is free only because its column is dropped may be taken.
            and not held.difference(self.dropped).intersection(renamed.values())
        )
        if can_edit:
            return edit_images(images, drop=self.dropped, rename=renamed)
        if not self.names:
            return pc.if_else(images.is_valid(), "{}", pa.scalar(None, pa.string()))
        values = parse_images(images, list(self.names))
        present = find_present(images, values)
        return build(
            {new: values[name] for name, new in self.names.items()},
            {new: present[name] for name, new in self.names.items()},
            images.is_valid(),
        )


def build(values: Mapping[str, pa.Array], present: Mapping[str, pa.Array], is_there: pa.Array) -> pa.Array:
    """Write images, see `build_images`; null where `is_there` does not hold."""
    return pc.if_else(is_there, build_images(values, present), pa.scalar(None, pa.string()))


def append(images: pa.Array, column: str, texts: pa.Array, is_there: pa.Array | None = None) -> pa.Array:
    """Add a column at the end of images that lack it; only where `is_there` holds, if given. Null stays null."""
    if images.null_count == len(images):
        return images
    member = build_images({column: texts}, {})
    # `{"a":"1"}` and `{"b":"2"}`: without the brace that ends one, and that which begins the other.
    head, tail = pc.utf8_slice_codeunits(images, 0, -1), pc.utf8_slice_codeunits(member, 1)
    comma = pc.if_else(pc.equal(images, "{}"), "", ",")
    longer = pc.binary_join_element_wise(head, comma, tail, "")
    return longer if is_there is None else pc.if_else(is_there, longer, images)


def lacking(column: str, place: str, where: str) -> MalformedInputError:
    """The error of an image that lacks a column which the setting at `place` looks at."""
    return MalformedInputError(
        f"{place}: a change lacks column {column!r}, which this looks at",
        where=where,
        do="have the source log every column of the row, before and after each change",
    )
