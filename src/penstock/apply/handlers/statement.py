"""Statements of statement handlers: SQL with the values of a change in it, or a call of the change itself.

Read once, when the pipeline file is; what they hold then is text and names, and never a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.text import nearest


class BindSource(StrEnum):
    """Where the value of a bind is found."""

    NEW = "new"
    NEW_ONLY = "new_only"
    OLD = "old"
    NEW_EXISTS = "new_exists"
    OLD_EXISTS = "old_exists"
    ATTRIBUTE = "attribute"


ATTRIBUTES = (
    "command_type",
    "object_owner",
    "object_name",
    "source_database_name",
    "source_time",
    "commit_scn",
    "transaction_id",
)
"""What a change tells of itself besides its row."""

_FIRST_WORDS = ("insert", "update", "delete", "merge", "with")


@dataclass(frozen=True)
class Bind:
    """A value of the change in a statement; `name` is a column, or an attribute."""

    source: BindSource
    name: str


@dataclass(frozen=True)
class Call:
    """A call of the change: `execute`, `add_column`, `delete_column`, `keep_columns` or `rename_column`.

    Attributes:
        arguments: Columns; of `execute`, TRUE or FALSE; of `add_column`, the column and its value, None for NULL.
    """

    name: str
    arguments: tuple[str | None, ...]


@dataclass(frozen=True)
class Statement:
    """One statement of a handler.

    Attributes:
        call: Where it is a call, and no SQL.
        parts: The SQL around its binds: one more than there are binds.
    """

    text: str
    call: Call | None = None
    parts: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()


_TOKEN = re.compile(
    r"""
    (?P<comment>--[^\n]*|/\*)
  | (?P<string>(?<![A-Za-z0-9_$])[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")*")
  | (?P<dollar>(?<![A-Za-z0-9_$])\$(?:[A-Za-z_]\w*)?\$)
  | (?P<cast>::)
  | (?P<bind>:[A-Za-z_]\w*(?:\s*\.\s*(?:[A-Za-z_][\w$]*|"(?:[^"]|"")*"))?)
  | (?P<word>[A-Za-z_][\w$]*)
  | (?P<end>;)
  | (?P<space>\s+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Cut SQL into (kind, text), whole strings and comments in one; joined, the texts are the SQL again."""
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None
        kind, end = found.lastgroup or "other", found.end()
        if found.group() == "/*":
            end = _end_of_comment(text, at)
        elif kind == "dollar":
            closing = text.find(found.group(), end)
            end = len(text) if closing < 0 else closing + len(found.group())
        yield kind, text[at:end]
        at = end


def _end_of_comment(text: str, at: int) -> int:
    """Where a comment ends, which may hold others."""
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)


_CONTROL = {
    "begin": "it begins a transaction",
    "start": "it begins a transaction",
    "commit": "it commits",
    "end": "it commits",
    "rollback": "it rolls back",
    "abort": "it rolls back",
    "prepare": "it prepares a transaction",
    "savepoint": "it sets a savepoint; use savepoint() of the target",
    "release": "it releases a savepoint; use savepoint() of the target",
    "discard": "it changes the session",
    "reset": "it changes the session",
    "copy": "COPY does not come with its rows",
}


def refusal(text: str) -> str | None:
    """Say why a handler may not run a statement: it would end the transaction, or outlast it. None where it may."""
    words = _statements(text)
    if len(words) != 1:
        return "it is empty" if not words else "it is more than one statement"
    first, *rest = words[0]
    if first in _CONTROL:
        return _CONTROL[first]
    if first == "set" and rest[:1] not in (["local"], ["constraints"]):
        return "it would outlast the transaction; write SET LOCAL"
    if first == "set" and rest[1:2] in (["transaction"], ["session_replication_role"], ["role"]):
        return "it changes how the rest of the transaction is applied"
    return None


def _statements(text: str) -> list[list[str]]:
    """The words of each statement in a text, in small letters; what is no word but matters stands as it is."""
    found: list[list[str]] = [[]]
    for kind, token in _tokens(text):
        if kind == "end":
            found.append([])
        elif kind not in ("space", "comment"):
            found[-1].append(token.lower())
    return [words for words in found if words]


def parse(text: str) -> Statement:
    """Read a statement of a statement handler.

    Raises:
        ValueError: It is none; the text says why.
    """
    if re.match(r"\s*:lcr\b", text, re.IGNORECASE):
        return Statement(text, call=_call(text))
    reason = refusal(text)
    if reason is not None:
        raise ValueError(f"{text.strip()!r} is not for a handler: {reason}")
    first = _statements(text)[0][0]
    if first not in _FIRST_WORDS:
        raise ValueError(
            f"{text.strip()!r} is not an INSERT, UPDATE, DELETE or MERGE, and not a call such as :lcr.execute TRUE"
        )
    parts, binds = [""], []
    for kind, token in _tokens(text):
        if kind == "bind":
            binds.append(_bind(token))
            parts.append("")
        elif kind != "end":
            parts[-1] += token
    return Statement(text, parts=tuple(parts), binds=tuple(binds))


def _bind(token: str) -> Bind:
    name, dot, column = (part.strip() for part in token[1:].partition("."))
    name = name.lower()
    if dot and name in list(BindSource) and name != BindSource.ATTRIBUTE:
        # Without quotes a name is in small letters, as SQL has it.
        column = column[1:-1].replace('""', '"') if column.startswith('"') else column.lower()
        return Bind(BindSource(name), column)
    if not dot and name in ATTRIBUTES:
        return Bind(BindSource.ATTRIBUTE, name)
    known = [*(f"{source}.c" for source in BindSource if source is not BindSource.ATTRIBUTE), *ATTRIBUTES]
    raise ValueError(f"{token!r} is not a value of a change{nearest(token[1:], known)}: known are :{', :'.join(known)}")


_COUNTS = {
    "execute": (1, 1),
    "add_column": (2, 2),
    "delete_column": (1, 1),
    "keep_columns": (1, None),
    "rename_column": (2, 2),
}
"""By call, how many arguments it takes at least, and at most."""


def _call(text: str) -> Call:
    found = re.fullmatch(r"\s*:lcr\s*\.\s*(\w+)(.*?);?\s*", text, re.IGNORECASE | re.DOTALL)
    if found is None:
        raise ValueError(f"{text.strip()!r} is not a call: write for example :lcr.execute TRUE")
    name = found[1].lower()
    if name not in _COUNTS:
        raise ValueError(
            f"{text.strip()!r}: there is no call {name!r}{nearest(name, _COUNTS)}: known are {', '.join(_COUNTS)}"
        )
    arguments = tuple(_arguments(found[2]))
    least, most = _COUNTS[name]
    if name == "execute":
        said = arguments[0].upper() if len(arguments) == 1 and isinstance(arguments[0], str) else ""
        if said not in ("TRUE", "FALSE"):
            raise ValueError(f"{text.strip()!r}: :lcr.execute says TRUE or FALSE: whether resolvers are called")
        return Call(name, (said,))
    if len(arguments) < least or (most is not None and len(arguments) > most):
        raise ValueError(f"{text.strip()!r}: :lcr.{name} takes {least}{' or more' if most is None else ''} arguments")
    if any(argument is None for argument in (arguments[:1] if name == "add_column" else arguments)):
        raise ValueError(f"{text.strip()!r}: NULL is not the name of a column")
    return Call(name, arguments)


def _arguments(text: str) -> Iterator[str | None]:
    """Names, strings and numbers, with commas and parentheses or without."""
    number: Sequence[str] = ()
    for kind, token in _tokens(text):
        is_mark = token in ("(", ")", ",")
        if kind == "other" and not is_mark:
            number = (*number, token)
            continue
        if number:
            yield "".join(number)
            number = ()
        if kind == "string":
            yield token[1:-1].replace("''", "'")
        elif kind == "quoted":
            yield token[1:-1].replace('""', '"')
        elif kind == "word":
            yield None if token.upper() == "NULL" else token.lower()
    if number:
        yield "".join(number)
