"""The part `apply.dependencies` of a pipeline file."""

from __future__ import annotations

from pydantic import Field, field_validator

from penstock.apply.virtual_dependencies import ObjectDependency, ValueDependency, VirtualDependencies, find_circle
from penstock.config.parts import Columns, ConfigPart, Table, table_named


class ObjectDependencyConfig(ConfigPart):
    """A table whose changes follow those of another; names are those at the target."""

    table: Table = Field(description="A transaction that changes this table")
    after: Table = Field(description="waits for all earlier ones that change this one")


class DependenciesConfig(ConfigPart):
    """What depends on each other, though no constraint of the target tells; names are those at the target."""

    values: dict[str, dict[Table, Columns]] = Field(
        default_factory=dict,
        description="By a name of yours: columns of one table or more. Transactions with equal values in them keep"
        " their order",
    )
    objects: list[ObjectDependencyConfig] = Field(
        default_factory=list, description="Tables whose changes follow those of another, whatever their values are"
    )

    @field_validator("values")
    @classmethod
    def _line_up(cls, values: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, list[str]]]:
        for name, members in values.items():
            if not members:
                raise ValueError(f"{name!r} names no table")
            if len({table_named(text) for text in members}) < len(members):
                raise ValueError(f"{name!r} names a table twice")
            for text, columns in members.items():
                if len(set(columns)) < len(columns):
                    raise ValueError(f"{name!r} names a column of {text} twice")
            if len({len(columns) for columns in members.values()}) > 1:
                raise ValueError(f"{name!r} names more columns of one table than of another; they line up")
        return values

    @field_validator("objects")
    @classmethod
    def _are_in_no_circle(cls, objects: list[ObjectDependencyConfig]) -> list[ObjectDependencyConfig]:
        circle = find_circle([_object_dependency(one) for one in objects])
        if circle is not None:
            raise ValueError(f"follow each other in a circle: {' after '.join(map(str, circle))}")
        return objects

    @property
    def virtual(self) -> VirtualDependencies:
        """The same as apply takes it."""
        return VirtualDependencies(
            values=tuple(
                ValueDependency(name, {table_named(text): tuple(columns) for text, columns in members.items()})
                for name, members in self.values.items()
            ),
            objects=tuple(map(_object_dependency, self.objects)),
        )


def _object_dependency(one: ObjectDependencyConfig) -> ObjectDependency:
    return ObjectDependency(table_named(one.table), table_named(one.after))
