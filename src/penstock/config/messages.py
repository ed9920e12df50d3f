"""What pydantic finds wrong with a pipeline file, said in our words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.config.capture import SOURCES
from penstock.config.document import Document, Fault, Path_, must_be_redacted
from penstock.config.parts import ConfigPart
from penstock.text import nearest

_KINDS_OF_VALUES = frozenset({"str", "int", "float", "bool"})
"""What pydantic adds to a path for each kind that its value may be of."""


def fault_of(document: Document, error: Any) -> Fault:
    """Say one of pydantic's findings in our words, redacted: it never repeats a url."""
    path = _path_of(error["loc"])
    given = error["input"]
    has_no_value = given is None and error["type"] not in ("missing", "value_error")
    if has_no_value and path[-1] in _KINDS_OF_VALUES:
        path = path[:-1]
    if error["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return document.fault((*path, "type"), _wrong_kind(error))
    if has_no_value:
        return document.fault(path, "has no value")
    is_secret = (
        "url" in path
        or "registry" in path
        or path[:1] == ("on_error",)
        or (path[:1] == ("connections",) and len(path) > 3)
    )
    is_shown = isinstance(given, str | int | float | bool) and not is_secret and not must_be_redacted(given)
    return document.fault(path, _said(error, path, f", not {given!r}" if is_shown else ""))


def _path_of(found: tuple[str | int, ...]) -> Path_:
    """The path of a setting, without what pydantic adds."""
    # Of what is wrong with a key itself, pydantic says so behind it.
    path: Path_ = tuple(part for part in found if part != "[key]")
    is_connection = path[:1] == ("connections",) and len(path) > 2
    if is_connection or path[:2] == ("capture", "changes_of"):
        # Behind these stands the kind by which the value is checked.
        return path[:2] + path[3:]
    return path


def _wrong_kind(error: Any) -> str:
    if error["type"] == "union_tag_not_found":
        return "is missing"
    given = error["input"]
    kind = given.get("type") if isinstance(given, dict) else None
    shown = f", not {kind!r}" if isinstance(kind, str) and not must_be_redacted(kind) else ""
    return f"must be {error['ctx']['expected_tags'].replace(', ', ' or ')}{shown}"


def _said(error: Any, path: Path_, shown: str) -> str:
    match error["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            known = [name for part in _parts(ConfigPart) for name in part.model_fields]
            return "is not an option" + nearest(str(path[-1]), known)
        case "literal_error" | "enum":
            return f"must be {error['ctx']['expected']}{shown}"
        case "value_error":
            return str(error["ctx"]["error"])
        case "too_short" if error["ctx"]["actual_length"] == 0:
            return "is empty"
        case "string_pattern_mismatch":
            return f"must be {_form_of(path)}{shown}"
        case _:
            return str(error["msg"]).replace("Input should be", "must be") + shown


def _parts(part: type[ConfigPart]) -> Iterator[type[ConfigPart]]:
    """The parts of a file whose settings may have been meant by a name that is none: all that there are."""
    for one in part.__subclasses__():
        yield one
        yield from _parts(one)


def _form_of(path: Path_) -> str:
    """The form of a text that has to match a pattern."""
    match path[-1]:
        case "prefix" | "transaction_topic" | "topic":
            return "letters, digits, '.', '_' and '-'"
        case name if name == "tag" or path[:2] == ("capture", "changes_of"):
            return "letters, digits, '.', '_', ':' and '-'"
        case "procedure" | "error" | "precommit" | "ddl" | "message":
            return "module:function, or the name of an entry point"
        case "step":
            return "module:function"
        case "source":
            return f"{', '.join(repr(source.name) for source in SOURCES)} or module:name"
        case _:
            return "lower-case letters, digits and underscores, at most 36, beginning with a letter"
