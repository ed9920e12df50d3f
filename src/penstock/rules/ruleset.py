"""The rules of a pipeline file: which tables are processed, what each is called, and the rule for its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.change import TableName
from penstock.errors import ConfigError
from penstock.patterns import TablePattern, TableTemplate
from penstock.rules.table_rule import TableRule
from penstock.schema import TableSchema

if TYPE_CHECKING:
    from penstock.config import RulesConfig


@dataclass(frozen=True)
class RuleSet:
    """All rules of a pipeline. Travels to tasks; opens nothing.

    Attributes:
        captured: What is captured.
        included: What is processed of it; None is everything, and empty is nothing (A-16).
        excluded: What is not processed, whatever else is said of it.
        entries: Those of single tables first, then those of patterns, each as in the file.
        folder: Where modules of the user's own lie.
    """

    captured: tuple[TablePattern, ...]
    included: tuple[TablePattern, ...] | None = None
    excluded: tuple[TablePattern, ...] = ()
    entries: tuple[Entry, ...] = ()
    folder: Path = field(default_factory=Path)

    @classmethod
    def of(cls, config: RulesConfig, capture_tables: Sequence[str], folder: Path) -> RuleSet:
        """Read the `rules` of a pipeline file that lies in `folder` and captures the tables of these patterns."""
        entries = [Entry.of(config, text) for text in config.tables]
        return cls(
            captured=_patterns(capture_tables),
            included=None if config.include is None else _patterns(config.include),
            excluded=_patterns(config.exclude),
            # The sort is stable.
            entries=tuple(sorted(entries, key=lambda entry: entry.pattern.table is None)),
            folder=folder.absolute(),
        )

    def takes(self, source: TableName) -> bool:
        """Whether a table is processed: it is captured, included and not excluded (A-16)."""
        return (
            _matches(self.captured, source)
            and (self.included is None or _matches(self.included, source))
            and not _matches(self.excluded, source)
        )

    def target_name(self, source: TableName) -> TableName:
        """What a table is called at the target."""
        template = self._first(source, "to")
        return source if template is None else template.made_of(source)

    def source_names(self, target: TableName) -> list[TableName]:
        """Every table that is processed and is called `target` at the target, if it is there; at most one is right."""
        candidates = [entry.to.origin(target, entry.pattern) for entry in self.entries if entry.to is not None]
        named = dict.fromkeys(name for name in (*candidates, target) if name is not None)
        return [name for name in named if self.takes(name) and self.target_name(name) == target]

    def refuse_collisions(self, sources: Iterable[TableName]) -> None:
        """Make sure that no two tables have one name at the target.

        Raises:
            ConfigError: Two have.
        """
        raise NotImplementedError

    def rule(self, table: TableSchema, root: TableSchema, *, is_current: bool = True) -> TableRule | None:
        """Return the rule for one version of a table; None where it passes as it is, its name too.

        Args:
            root: The table itself, or the partitioned one it is a part of: its rules are those of its parts, and
                their changes get its name at the target.
            is_current: The table is like this now. Of an earlier version a rule may name a column that it lacks: to
                keep, drop or rename it means nothing then, and a change that a condition cannot be asked of is refused
                when it comes.

        Raises:
            ConfigError: The rules do not fit the table; names each fault with its line.
        """
        raise NotImplementedError

    def warnings(self, table: TableSchema) -> list[str]:
        """What a person should know before these rules are put to work on a table."""
        raise NotImplementedError

    def _first(self, source: TableName, setting: str) -> Any:
        """A setting as the first entry for a table has it."""
        values = (getattr(entry, setting) for entry in self._entries_of(source))
        return next((value for value in values if value is not None), None)

    def _entries_of(self, source: TableName) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.pattern.matches(source))


@dataclass(frozen=True)
class Entry:
    """What the file says of the tables of one pattern; None where it says nothing."""

    pattern: TablePattern
    to: TableTemplate | None

    @classmethod
    def of(cls, config: RulesConfig, text: str) -> Entry:
        rule = config.tables[text]
        return cls(TablePattern.parse(text), None if rule.to is None else TableTemplate.parse(rule.to))


def _patterns(texts: Iterable[str]) -> tuple[TablePattern, ...]:
    return tuple(map(TablePattern.parse, texts))


def _matches(patterns: Iterable[TablePattern], table: TableName) -> bool:
    return any(pattern.matches(table) for pattern in patterns)
