"""Rows of the form that `writer` has, matched by one regular expression for each table.

A row that a form matches is well formed, and has nothing that reading it would refuse: each value is one of its
column's type. What matches is also the only way to write that row, so equal rows are equal text. A row that does not
match may be as good: the parser decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from penstock.change import Image
from penstock.formats.dbwatcher.form_values import BASE64, TYPED, read_values, value_reader
from penstock.formats.dbwatcher.message import MessageRow
from penstock.formats.dbwatcher.protect import columns2xml
from penstock.formats.dbwatcher.writer import escaped_content
from penstock.logical import Kind, LogicalType

MOST_COLUMNS = 500
"""A table with more has no form: its expression would take long to make."""

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
"""What needs Base64; U+FFFE and U+FFFF do, too, and whoever asks a form makes sure that there is none."""

_ATTRIBUTE_TEXT = rf"[^<>&{_CONTROLS}]"

_OTHERS = (
    r"((?:     <attr name='(?!(?:replKey|transaction|oldContent)')[A-Za-z_][A-Za-z_0-9]*+'>"
    rf"{_ATTRIBUTE_TEXT}*+</attr>\n)*+)"
)
"""Attributes other than those that differ from row to row."""


class _Notation(NamedTuple):
    """How columns are written: as they are in a row, or escaped in an old image.

    Attributes:
        null, text, packed: What follows a column's name where it is NULL, a text, or Base64.
        plain: Text without `<` and `&`, and without `]]>`.
        marked: Text with one of them, in CDATA.
    """

    null: str
    text: str
    packed: str
    end: str
    plain: str
    marked: str


def _run(usual: str, other: str) -> str:
    """A run of usual characters, with others between."""
    return f"{usual}*+(?:(?:{other}){usual}*+)*+"


_BRACKET = r"\](?!\]>)"
_PLAIN = _run(rf"[^<&\]{_CONTROLS}]", _BRACKET)
_ANY = _run(rf"[^\]{_CONTROLS}]", _BRACKET)

_IN_ROW = _Notation(
    null=' type="null"/>',
    text=">",
    packed=' encoding="base64">',
    end="</col>",
    plain=_PLAIN,
    marked=rf"<!\[CDATA\[(?={_PLAIN}[<&]){_ANY}\]\]>",
)

_ESCAPED = rf"[^<>&\"'\]{_CONTROLS}]"
_ESCAPED_BRACKET = r"\](?!\]&gt;)"
_ESCAPED_PLAIN = _run(_ESCAPED, f"&(?:gt|quot|apos);|{_ESCAPED_BRACKET}")
_ESCAPED_ANY = _run(_ESCAPED, f"&(?:lt|amp|gt|quot|apos);|{_ESCAPED_BRACKET}")

_IN_OLD = _Notation(
    null=escaped_content(_IN_ROW.null),
    text=escaped_content(_IN_ROW.text),
    packed=escaped_content(_IN_ROW.packed),
    end=escaped_content(_IN_ROW.end),
    plain=_ESCAPED_PLAIN,
    marked=rf"&lt;!\[CDATA\[(?={_ESCAPED_PLAIN}&(?:lt|amp);){_ESCAPED_ANY}\]\]&gt;",
)


class RowText(NamedTuple):
    """What a form finds in a row.

    Attributes:
        content, old: Columns as they stand there; None for an old image that is not there.
        others_1: Attributes other than those that have a group of their own, here and below.
        found: The match, which has the columns one by one.
    """

    content: str
    others_1: str
    repl_key: str | None
    others_2: str
    transaction: str | None
    others_3: str
    old: str | None
    others_4: str
    found: re.Match[str]


class RowForm:
    """The rows of one table, whose columns come in one order; each of them may be absent.

    Attributes:
        has_untyped: The definition lacks a column, so Base64 may be a text of it.
    """

    def __init__(self, columns: Mapping[str, LogicalType | None]) -> None:
        """Make the expression.

        Args:
            columns: By name, in the order of messages; None where the definition has no such column.

        Raises:
            MalformedInputError: XML cannot carry the name of one.
        """
        self.columns = tuple(columns)
        self.has_untyped = None in columns.values()
        self._new = [value_reader(name, logical, is_old=False) for name, logical in columns.items()]
        self._old = [value_reader(name, logical, is_old=True) for name, logical in columns.items()]
        new, old = (_columns(columns, notation) for notation in (_IN_ROW, _IN_OLD))
        self._match = re.compile(
            rf"   <row num='[0-9]++'>  ({new})\n{_OTHERS}(?:     <attr name='replKey'>([0-9]{{1,30}}+)</attr>\n)?+"
            rf"{_OTHERS}(?:     <attr name='transaction'>({_ATTRIBUTE_TEXT}++)</attr>\n)?+{_OTHERS}"
            rf"(?:     <attr name='oldContent' encoding='forcePlain'>({old})</attr>\n)?+{_OTHERS}   </row>\n"
        ).match
        # The groups that are none of a column.
        first = len(columns) + 2
        self._groups = (1, *range(first, first + 6), first + 6 + len(columns))

    def find(self, text: str, at: int) -> RowText | None:
        """Match a row that begins at a place; None where it has another form."""
        found = self._match(text, at)
        return None if found is None else RowText._make((*found.group(*self._groups), found))

    def images(self, row: RowText) -> tuple[Image, Image]:
        """Read the columns and the old image of a row that it found, as canonical text."""
        found, size = row.found.groups(), len(self.columns)
        new = read_values(self._new, found[1 : size + 1])
        return new, {} if row.old is None else read_values(self._old, found[-size - 1 : -1])


def row_text(row: MessageRow) -> tuple[str, str | None]:
    """Return columns and old image of a row as a form would have them; None for an old image that is not there."""
    return columns2xml(row.columns), None if row.old is None else escaped_content(columns2xml(row.old))


def merged(names: Sequence[str], known: Iterable[str]) -> Sequence[str]:
    """Return columns in an order in which some of them came, with each other one behind the one that it was behind."""
    found = list(names)
    before = None
    for name in known:
        if name not in names:
            found.insert(0 if before is None else found.index(before) + 1, name)
        before = name
    return found


def _columns(columns: Mapping[str, LogicalType | None], notation: _Notation) -> str:
    return "".join(_column(name, logical, notation) for name, logical in columns.items())


def _column(name: str, logical: LogicalType | None, notation: _Notation) -> str:
    # What columns2xml makes of the name ends in ` type="null"/>`.
    written = columns2xml({name: None}).removesuffix(_IN_ROW.null)
    tag = re.escape(written if notation is _IN_ROW else escaped_content(written))
    text, packed, end = (re.escape(one) for one in (notation.text, notation.packed, notation.end))
    typed = None if logical is None else TYPED.get(logical.kind)
    values = [] if typed is None else [f"{text}{typed}"]
    if logical is None or (typed is None and logical.kind is not Kind.BINARY):
        values.append(f"{text}(?:{notation.marked}|{notation.plain})")
    if logical is None or logical.kind is Kind.BINARY:
        values.append(f"{packed}{BASE64}")
    return f"(?:{tag}((?:{'|'.join(values)}){end}|{re.escape(notation.null)}))?+"


@lru_cache(1_000)
def attributes_of(others: str) -> Mapping[str, str]:
    """Return the attributes that a group `others` of a match holds."""
    parts = others.split("     <attr name='")[1:]
    return {name: value.removesuffix("</attr>\n") for name, _, value in (part.partition("'>") for part in parts)}
