"""The part `rules` of a pipeline file: which tables are processed, and what becomes of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, PrivateAttr

from penstock.config.document import Path_, dotted, line_of
from penstock.config.parts import ConfigPart, Pattern, Template
from penstock.user_code import NAME


class TableRuleConfig(ConfigPart):
    """What becomes of the rows of a table, or of the tables that a pattern matches; in the order of the fields.

    Conditions and computed columns see the row as it is at the source.
    """

    rows: str | None = Field(
        default=None,
        min_length=1,
        description="Condition in SQL for the rows that are at the target. An update that moves a row in or out becomes"
        " an insert or a delete",
    )
    operations: list[Literal["insert", "update", "delete", "truncate"]] | None = Field(
        default=None, min_length=1, description="The changes that reach the target; all of them if absent"
    )
    keep: list[str] | None = Field(default=None, min_length=1, description="The only columns that are kept")
    drop: list[str] = Field(default_factory=list, description="Columns that are left out")
    rename: dict[str, str] = Field(default_factory=dict, description="Columns that are called otherwise at the target")
    add: dict[str, str] = Field(default_factory=dict, description="Further columns, each as an expression in SQL")
    to: Template | None = Field(
        default=None,
        description="What the table is called at the target, schema.table; a * stands for what it is at the source",
    )
    step: str | None = Field(
        default=None,
        pattern=rf"^{NAME}$",
        description="module:function in Python, which takes and returns the rows as an Arrow table of texts",
    )


class RulesConfig(ConfigPart):
    """Which tables are processed, and what becomes of their rows; names are those at the source."""

    include: list[Pattern] | None = Field(
        default=None,
        description="Patterns of the tables to process; all that are captured if absent, none if the list is empty",
    )
    exclude: list[Pattern] = Field(default_factory=list, description="Patterns of the tables that are not processed")
    tables: dict[Pattern, TableRuleConfig] = Field(
        default_factory=dict,
        description="By table or pattern. Each setting is taken from the first that has it: the table's own, then the"
        " patterns in the order of the file",
    )
    _file: str = PrivateAttr(default="")
    _lines: Mapping[Path_, int] = PrivateAttr(default_factory=dict)

    def place(self, *path: str | int) -> str:
        """Where a setting below `rules` stands, as `file:line: rules.path: `; without a file, only the path."""
        named = f"{dotted(('rules', *path))}: "
        return f"{self._file}:{line_of(self._lines, path)}: {named}" if self._file else named

    @property
    def folder(self) -> Path:
        """Where the pipeline file lies, and modules with steps beside it."""
        return Path(self._file).parent

    def read_from(self, file: str, lines: Mapping[Path_, int]) -> None:
        """Remember the file, and the line of each setting by its path below `rules`; for `place`."""
        self._file, self._lines = file, lines
