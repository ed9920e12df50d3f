"""The rules of a pipeline file: which tables are processed, what each is called, and the rule for its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.change import TableName
from penstock.errors import ConfigError
from penstock.patterns import TablePattern, TableTemplate
from penstock.rules.compiler import RuleSettings, make_rule
from penstock.rules.table_rule import TableRule
from penstock.schema import ForeignKey, TableSchema

if TYPE_CHECKING:
    from penstock.config.rules import RulesConfig


@dataclass(frozen=True)
class RuleSet:
    """All rules of a pipeline. Travels to tasks; opens nothing.

    Attributes:
        captured: Patterns of the captured tables.
        included: Patterns of those that are processed; None for all, empty for none.
        excluded: Patterns of those that are not processed, even if included.
        entries: Those of single tables first, then those of patterns, each as in the file.
        folder: Where modules of the user's own lie.
    """

    captured: tuple[TablePattern, ...]
    included: tuple[TablePattern, ...] | None = None
    excluded: tuple[TablePattern, ...] = ()
    entries: tuple[RuleEntry, ...] = ()
    folder: Path = field(default_factory=Path)

    @classmethod
    def of(cls, config: RulesConfig, capture_tables: Sequence[str], folder: Path) -> RuleSet:
        """Read the `rules` of a pipeline file that lies in `folder` and captures the tables of these patterns."""
        entries = [RuleEntry.of(config, text) for text in config.tables]
        return cls(
            captured=_patterns(capture_tables),
            included=None if config.include is None else _patterns(config.include),
            excluded=_patterns(config.exclude),
            # The sort is stable.
            entries=tuple(sorted(entries, key=lambda entry: entry.pattern.table is None)),
            folder=folder.absolute(),
        )

    def takes(self, source: TableName) -> bool:
        """Whether a table is processed: it is captured, included and not excluded."""
        return (
            _matches(self.captured, source)
            and (self.included is None or _matches(self.included, source))
            and not _matches(self.excluded, source)
        )

    def target_name(self, source: TableName) -> TableName:
        """What a table is called at the target."""
        template = self._settings(source).get("to")
        return source if template is None else template.made_of(source)

    def source_names(self, target: TableName) -> list[TableName]:
        """Every table that is processed and is called `target` at the target, if it is there; at most one is right."""
        templates = [(entry.pattern, entry.settings.get("to")) for entry in self.entries]
        candidates = [template.origin(target, pattern) for pattern, template in templates if template is not None]
        named = dict.fromkeys(name for name in (*candidates, target) if name is not None)
        return [name for name in named if self.takes(name) and self.target_name(name) == target]

    def likely_sources(self, target: TableName) -> list[TableName]:
        """The same, but where the file names a table that gets this name, only that one: it is most likely there."""
        names = self.source_names(target)
        return [name for name in names if any(entry.pattern.table == name for entry in self.entries)] or names

    def refuse_collisions(self, sources: Iterable[TableName]) -> None:
        """Make sure that no two tables have one name at the target.

        Args:
            sources: Tables at the source; those that are not processed do not count.

        Raises:
            ConfigError: Two have; names each pair, with the line that gives one of them its name.
        """
        named: dict[TableName, TableName] = {}
        faults = []
        for source in sorted(set(sources)):
            if not self.takes(source):
                continue
            target = self.target_name(source)
            other = named.setdefault(target, source)
            if other != source:
                settings = self._settings(source)
                place = (settings if "to" in settings.values else self._settings(other)).place("to")
                faults.append(f"{place}{other} and {source} would both be {target} at the target")
        if faults:
            raise ConfigError("\n".join(faults), do="give one of them another name, or exclude it")

    def rule(self, table: TableSchema, root: TableSchema, *, is_current: bool = True) -> TableRule | None:
        """Return the rule for one version of a table; None where it passes as it is, its name too.

        Args:
            root: The table itself, or the partitioned one it is a part of: its rules are those of its parts, and
                their changes get its name at the target.
            is_current: The table is like this now. An earlier version may lack a column that a rule names: to keep,
                drop or rename it means nothing then, and a change of which a condition or a computed column cannot be
                told is refused when it comes.

        Raises:
            ConfigError: The rules do not fit the table; names each fault with its line.
        """
        settings, target = self._settings(root.name), self.target_name(root.name)
        if not settings.changes_rows and target == root.name:
            return None
        rule = make_rule(table, target, settings, is_current=is_current, named=self._name_of_columns)
        return replace(rule, is_partition=table.name != root.name)

    def concerns(self, source: TableName) -> bool:
        """Whether anything is said of a table that is processed, or of its name."""
        return bool(self._settings(source).values)

    def references(self, table: TableSchema) -> tuple[ForeignKey, ...]:
        """The foreign keys of a table that passes as it is, by the names that their parents have at the target."""
        found = []
        for key in table.foreign_keys:
            named = self._name_of_columns(key.parent, key.parent_columns)
            if named is not None:
                found.append(replace(key, parent=named[0], parent_columns=tuple(named[1])))
            elif not self.takes(key.parent):
                # The parent may be there without us.
                found.append(key)
        return tuple(found)

    def warnings(self, table: TableSchema, *, is_current: bool = True) -> list[str]:
        """What a person should know before these rules are put to work on a table; each with its line.

        Args:
            is_current: As of `rule`.

        Raises:
            ConfigError: The rules do not fit the table.
        """
        settings = self._settings(table.name)
        rule = self.rule(table, table, is_current=is_current)
        found = self._orphans(table, settings)
        if rule is None:
            return found
        key = table.primary_key
        lost = [] if key is None else [name for name in key.columns if name not in rule.columns.names]
        if lost:
            setting = "drop" if any(name in settings.get("drop", ()) for name in lost) else "keep"
            columns = ", ".join(map(repr, lost))
            found.append(
                f"{settings.place(setting)}leaves out {columns} of the primary key of {table.name}: rows at the target"
                " are told apart by all their columns, and changes are applied one by one"
            )
        if rule.operations is not None:
            place = settings.place("operations")
            left_out = [op for op in ("insert", "update", "delete") if op not in rule.operations]
            effects = {
                "insert": "an update or a delete of a row that was inserted later finds none",
                "update": "a later delete finds a row with other values than it expects",
                "delete": "rows stay, and are in the way of one that is inserted under the same key",
            }
            found += [f"{place}leaves out each {op} of {table.name}: {effects[op]}" for op in left_out]
            if left_out:
                found.append(
                    f"{place}rows of {table.name} differ by that, which `penstock verify` finds where there is a target"
                )
        return found

    def _orphans(self, table: TableSchema, settings: RuleSettings) -> list[str]:
        """Foreign keys of which rules leave out rows of the parent, and none of the child."""
        if settings.get("rows") is not None:
            # Whether the two conditions go together, nobody but the user can tell.
            return []
        found = []
        for key in table.foreign_keys:
            parent = self._settings(key.parent)
            is_kept = self._name_of_columns(table.name, key.columns) and self._name_of_columns(
                key.parent, key.parent_columns
            )
            if is_kept and parent.get("rows") is not None:
                found.append(
                    f"{parent.place('rows')}leaves out rows of {key.parent}, but none of {table.name}, which refers to"
                    f" it by foreign key {key.name!r}: children come without their parents, and what the target's key"
                    " refuses goes to the error queue; choose the rows of both, or remove that key at the target"
                )
        return found

    def _name_of_columns(self, source: TableName, columns: Sequence[str]) -> tuple[TableName, list[str]] | None:
        """What a table and these columns are called at the target; None where one of them is not there."""
        settings = self._settings(source)
        keep = settings.get("keep")
        dropped, renamed = settings.get("drop", ()), settings.get("rename", {})
        if not self.takes(source) or any(n in dropped or (keep is not None and n not in keep) for n in columns):
            return None
        return self.target_name(source), [renamed.get(name, name) for name in columns]

    def _settings(self, source: TableName) -> RuleSettings:
        """Each setting as the first entry for a table has it."""
        values: dict[str, Any] = {}
        places: dict[str, str] = {}
        for entry in self.entries:
            if entry.pattern.matches(source):
                for name, value in entry.settings.items():
                    if name not in values:
                        values[name] = value
                        places[name] = entry.places[name]
                        places |= {path: place for path, place in entry.places.items() if path.startswith(f"{name}.")}
        return RuleSettings(values, places, self.folder)


@dataclass(frozen=True)
class RuleEntry:
    """What the file says of the tables of one pattern.

    Attributes:
        settings: Only those that are given, as in the file; `to` as a template.
        places: Where each stands, as messages begin; also those of single columns: `add.total`, `drop.0`.
    """

    pattern: TablePattern
    settings: Mapping[str, Any]
    places: Mapping[str, str]

    @classmethod
    def of(cls, config: RulesConfig, text: str) -> RuleEntry:
        """Read one entry of `rules.tables`."""
        rule = config.tables[text]
        given = {name: getattr(rule, name) for name in type(rule).model_fields if name in rule.model_fields_set}
        settings = {name: value for name, value in given.items() if value is not None}
        places = {}
        for name, value in settings.items():
            places[name] = config.place("tables", text, name)
            parts: Iterable[str | int] = ()
            if isinstance(value, list | dict):
                parts = range(len(value)) if isinstance(value, list) else value
            places |= {f"{name}.{part}": config.place("tables", text, name, part) for part in parts}
        if rule.to is not None:
            settings["to"] = TableTemplate.parse(rule.to)
        return cls(TablePattern.parse(text), settings, places)


def _patterns(texts: Iterable[str]) -> tuple[TablePattern, ...]:
    return tuple(map(TablePattern.parse, texts))


def _matches(patterns: Iterable[TablePattern], table: TableName) -> bool:
    return any(pattern.matches(table) for pattern in patterns)
