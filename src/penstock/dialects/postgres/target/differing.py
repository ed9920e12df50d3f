"""In what the target's tables, and their schemas, differ from the source's, once all is made that is going to be."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from penstock.change import TableName
from penstock.database import CatalogDifference, MissingObject
from penstock.dialects.postgres.objects import CatalogObject, Objects, compare
from penstock.errors import OperatorError, PenstockError

_WITH_TABLE = ("table", "column", "column order", "not null", "primary key", "unique key", "exclusion constraint")
"""What is made with a table."""


@dataclass(frozen=True)
class PlannedObjects:
    """What is going to be made, and what is not.

    Attributes:
        made_yet: What steps and post-data objects make, each in the words of its summary.
        reasons: Why others are not made.
        made: The tables that setup has made, or makes.
    """

    made_yet: Collection[str]
    reasons: Mapping[str, str]
    made: Collection[TableName]


def planned(source: Objects, target: Objects, coming: PlannedObjects) -> Iterator[CatalogDifference]:
    """Yield in what the target will differ from the source once all is made that is planned."""
    types = {one.name for one in source.found if one.kind == "type" and one.what in coming.made_yet}
    tables = target.tables
    # Steps say of these what they refer to, too.
    short = {what.partition(" of ")[0] for what in coming.made_yet if what.startswith("partition ")}
    keys = {what.partition(" to ")[0] for what in coming.made_yet if what.startswith("foreign key ")}

    def is_coming(one: CatalogObject) -> bool:
        if one.what in coming.made_yet or one.what in short:
            return True
        if one.kind == "owner":
            return one.definition == target.user
        if one.made == "type":
            return one.is_plain and any(one.name == name or one.name.endswith(f" of {name}") for name in types)
        if one.table is None or one.table in tables:
            return False
        return one.kind in _WITH_TABLE or (one.kind == "foreign key" and one.what in keys)

    for one in compare(source, target, made=coming.made, is_coming=is_coming):
        yield replace(one, reason=one.reason or coming.reasons.get(one.what, ""))


def remaining(
    source: Objects, target: Objects, lacks: Collection[MissingObject], made: Collection[TableName]
) -> list[CatalogDifference]:
    """Return in what the target differs from the source, but for what is about to be made."""
    coming = {lack.what for lack in lacks if not lack.reason}
    reasons = {lack.what: lack.reason for lack in lacks}
    found = [
        replace(one, reason=one.reason or reasons.get(one.what, ""))
        for one in compare(source, target, made=made)
        if one.what not in coming
    ]
    # Where rules change a table there is nothing to compare, but what could not be made.
    told = {one.what for one in found} | {one.what for one in target.found}
    others = [lack for lack in lacks if lack.reason and lack.what not in told]
    return found + [
        CatalogDifference(lack.what.partition(" ")[0], lack.what, lack.table, lack.reason) for lack in others
    ]


def invalid_indexes(
    source: Objects, target: Objects, building: Collection[TableName], *, where: str
) -> list[tuple[TableName | None, PenstockError]]:
    """Say which indexes of which tables hold for no row though the source's do, and are not about to be built anew.

    Args:
        building: Tables of which an index may be.
    """
    known = source.by_key
    return [
        (
            one.root,
            OperatorError(
                f"index {one.name} of {one.table} is not valid: nothing is found by it, and nothing is unique by it",
                where=where,
                do=f"build it anew: {one.remove}; {one.make}",
            ),
        )
        for one in target.found
        if one.kind == "invalid index" and one.key not in known and (one.made == "unique" or one.root not in building)
    ]
