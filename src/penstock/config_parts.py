"""What the parts of a pipeline file have in common: their kind, and the kinds of text in them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from penstock.change import TableName
from penstock.errors import ConfigError
from penstock.patterns import TablePattern, TableTemplate


class ConfigPart(BaseModel):
    """A part of the file: it has no settings but its own, and never changes."""

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
"""What tables are called at the target."""

Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]+$", max_length=200)]
"""An origin mark."""


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
