"""The base of every part of a pipeline file, and the kinds of text that several parts have."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from penstock.change import TableName
from penstock.errors import ConfigError
from penstock.patterns import TablePattern, TableTemplate
from penstock.storage import check_place


class ConfigPart(BaseModel):
    """A part of the file: it refuses settings that it does not define, and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _checked(kind: type[TablePattern] | type[TableTemplate], text: str) -> str:
    try:
        kind.parse(text)
    except ConfigError as exc:
        raise ValueError(str(exc)) from exc
    return text


Pattern = Annotated[str, AfterValidator(partial(_checked, TablePattern))]
"""Tables by their names, with * and ?."""

Template = Annotated[str, AfterValidator(partial(_checked, TableTemplate))]
"""Names of tables at the target."""

Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]+$", max_length=200)]
"""An origin mark."""

Columns = Annotated[list[str], Field(min_length=1)]
"""Names of columns, one at least."""


def table_named(text: str) -> TableName:
    """The table that a name in the file means.

    Raises:
        ValueError: It is no name of one table.
    """
    table = TablePattern.parse(_checked(TablePattern, text)).table
    if table is None:
        raise ValueError(f"{text!r} must name one table, schema.table, without * and ?")
    return table


def _names_a_table(text: str) -> str:
    table_named(text)
    return text


Table = Annotated[str, AfterValidator(_names_a_table)]
"""One table, `schema.table`; see `table_named`."""


def checked_place(path: str | None) -> str | None:
    """A folder or an url of an object store, checked.

    Raises:
        ValueError: It is empty, or no place that files can be in.
    """
    if path is None:
        return None
    if not path.strip():
        raise ValueError("is empty")
    try:
        check_place(path)
    except ConfigError as exc:
        raise ValueError(str(exc)) from exc
    return path


def below(folder: Path, path: str) -> str:
    """A path, taken from the pipeline file's folder unless it is absolute; an url stays the same."""
    return path if "://" in path else str((folder / Path(path).expanduser()).absolute())


def plain_text(value: str | float | bool) -> str:
    """A setting as text, booleans as most programs write them."""
    return str(value).lower() if isinstance(value, bool) else str(value)
