"""Dependencies between transactions that no constraint of the target tells: the user says them.

A value dependency is a key, or a foreign key, that no database enforces. An object dependency makes the changes of one
table follow those of another, whatever their values are. Tables and columns go by their names at the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.change import TableName
from penstock.logical import Kind
from penstock.schema import Column, TableSchema


@dataclass(frozen=True)
class ValueDependency:
    """Changes whose rows have equal values in these columns depend on each other, whichever tables they are of.

    Attributes:
        members: By table, as many columns of each, which line up.
    """

    name: str
    members: Mapping[TableName, tuple[str, ...]]


@dataclass(frozen=True)
class ObjectDependency:
    """A transaction that changes a table follows all earlier ones that change its parent; not the other way round."""

    table: TableName
    parent: TableName


@dataclass(frozen=True)
class VirtualDependencies:
    """All that the user has said."""

    values: tuple[ValueDependency, ...] = ()
    objects: tuple[ObjectDependency, ...] = ()

    @property
    def tables(self) -> frozenset[TableName]:
        """All tables that they name."""
        of_values = {name for dependency in self.values for name in dependency.members}
        return frozenset(of_values | {name for one in self.objects for name in (one.table, one.parent)})

    def faults(self, tables: Mapping[TableName, TableSchema]) -> Iterator[str]:
        """Yield what does not go with the tables at the target: a sentence for each."""
        for dependency in self.values:
            yield from _faults_of_values(dependency, tables)
        for one in self.objects:
            for name in (one.table, one.parent):
                if name not in tables:
                    yield f"object dependency of {one.table} after {one.parent}: table {name} does not exist"


NONE = VirtualDependencies()


def find_circle(dependencies: Sequence[ObjectDependency]) -> list[TableName] | None:
    """Return tables that follow each other in a circle, the first one again at the end; None where there are none."""
    parents: dict[TableName, list[TableName]] = {}
    for one in dependencies:
        parents.setdefault(one.table, []).append(one.parent)

    def walk(path: list[TableName]) -> list[TableName] | None:
        for parent in parents.get(path[-1], ()):
            if parent in path:
                return [*path[path.index(parent) :], parent]
            circle = walk([*path, parent])
            if circle is not None:
                return circle
        return None

    return next((circle for table in parents if (circle := walk([table])) is not None), None)


def _faults_of_values(dependency: ValueDependency, tables: Mapping[TableName, TableSchema]) -> Iterator[str]:
    where = f"value dependency {dependency.name!r}"
    # The columns of each table that has all of them.
    found: list[tuple[TableName, list[Column]]] = []
    for name, columns in dependency.members.items():
        if name not in tables:
            yield f"{where}: table {name} does not exist"
            continue
        by_name = tables[name].by_name
        lacking = [column for column in columns if column not in by_name]
        for column in lacking:
            yield f"{where}: table {name} has no column {column!r}"
        if not lacking:
            found.append((name, [by_name[column] for column in columns]))
    for name, members in found:
        for member in members:
            if not member.is_comparable:
                yield f"{where}: column {member.name!r} of {name} is {member.type}, which cannot be compared"
    for (one, ours), (other, theirs) in pairwise(found):
        for a, b in zip(ours, theirs, strict=True):
            if not _are_comparable(a, b):
                what = f"column {a.name!r} of {one} is {a.type}, and {b.name!r} of {other} is {b.type}"
                yield f"{where}: {what}, which cannot be compared"


_FAMILIES = {
    Kind.INTEGER: "number",
    Kind.DECIMAL: "number",
    Kind.FLOAT: "number",
    Kind.STRING: "text",
    Kind.DATE: "time",
    Kind.TIMESTAMP: "time",
    Kind.TIMESTAMPTZ: "time",
}


def _are_comparable(one: Column, other: Column) -> bool:
    """Whether values of two columns can be equal; of types that users made only their database knows."""
    if not (one.is_builtin and other.is_builtin):
        return True
    family, other_family = (_FAMILIES.get(c.logical.kind, c.base_type) for c in (one, other))
    return family == other_family
