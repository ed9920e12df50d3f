"""A pipeline file as data, with the line of everything in it, and what its checks find."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from penstock.errors import ConfigError

Path_ = tuple[str | int, ...]
"""The names, and places in lists, that lead to a setting."""

_MAY_BE_SECRET = re.compile(r"://|@|password", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where."""

    line: int
    text: str


class Document:
    """The text of a pipeline file as data, with the line of everything in it.

    Attributes:
        data: What the file says; checks that put secrets in place alter it.
        faults: What is wrong with the text itself.
        reported: Settings whose faults a check has reported; what their types say of them is not reported again.

    Raises:
        ConfigError: The text is not YAML, or no mapping; the message begins with `name` and a line.
    """

    def __init__(self, text: str, name: str) -> None:
        self._lines: dict[Path_, int] = {(): 1}
        self.faults: list[Fault] = []
        self.reported: set[Path_] = set()
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            data = None if root is None else self._read(root, ())
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            raise error_of(name, [Fault(mark.line + 1 if mark else 1, f"not YAML: {exc.problem}")]) from exc
        except yaml.reader.ReaderError as exc:
            fault = Fault(text.count("\n", 0, exc.position) + 1, f"not YAML: {exc.reason}")
            raise error_of(name, [fault]) from exc
        except RecursionError as exc:
            raise error_of(name, [Fault(1, "not a pipeline file: it is nested without end")]) from exc
        if not isinstance(data, dict):
            what = "a pipeline file is a mapping: version, name, connections, capture, apply or publish"
            raise error_of(name, [Fault(1, what)])
        self.data: dict[str, Any] = data

    def _read(self, node: yaml.Node, path: Path_) -> Any:
        """Turn a node into plain data, noting lines and repeated keys."""
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            result: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = str(key_node.value)
                line = key_node.start_mark.line + 1
                if key in result:
                    self.faults.append(Fault(line, f"{dotted((*path, key))} is given twice"))
                self._lines[*path, key] = line
                result[key] = self._read(value_node, (*path, key))
            return result
        if isinstance(node, yaml.SequenceNode):
            return [self._read(item, (*path, i)) for i, item in enumerate(node.value)]
        try:
            return yaml.SafeLoader("").construct_object(node)
        except ValueError as exc:
            # A date, or a number, that cannot be.
            mark = node.start_mark
            raise yaml.constructor.ConstructorError(None, None, "a value that cannot be read", mark) from exc

    def value(self, *path: str) -> Any:
        """What a setting is given; None where it is not."""
        found: Any = self.data
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def mapping(self, *path: str) -> dict[str, Any]:
        """The mapping at a path; an empty one where there is none."""
        found = self.value(*path)
        return found if isinstance(found, dict) else {}

    def line(self, path: Path_) -> int:
        """The line of a setting, or of the nearest thing around it."""
        return line_of(self._lines, path)

    def lines_below(self, part: str) -> Mapping[Path_, int]:
        """The line of everything in a part, by its path in there."""
        return {path[1:]: line for path, line in self._lines.items() if path[:1] == (part,)}

    def fault(self, path: Path_, what: str) -> Fault:
        """A fault of a setting, which it names."""
        return Fault(self.line(path), f"{dotted(path)}: {what}")

    def unfit(self, reasons: Mapping[str, str]) -> list[Fault]:
        """The settings, of those with a reason against them, that are given; each as `part.setting`."""
        return [
            self.fault(tuple(name.split(".")), why)
            for name, why in reasons.items()
            if self.value(*name.split(".")) is not None
        ]

    def missing(self, part: str, names: Iterable[str]) -> list[Fault]:
        """The settings of a part, of those that it needs, that are not given."""
        return [
            Fault(self.line((part,)), f"{part}.{name}: is missing") for name in names if self.value(part, name) is None
        ]


def error_of(name: str, faults: Iterable[Fault]) -> ConfigError:
    """One error that says all faults of the file `name`, by their lines."""
    lines = [f"{name}:{fault.line}: {fault.text}" for fault in sorted(faults, key=lambda f: f.line)]
    return ConfigError("\n".join(lines))


def must_be_redacted(value: object) -> bool:
    """Whether a value from the file must not stand in a message: an url in the wrong place may hold a password."""
    return bool(_MAY_BE_SECRET.search(str(value)))


def line_of(lines: Mapping[Path_, int], path: Path_) -> int:
    """The line of a path, or of the nearest thing around it."""
    while path not in lines:
        path = path[:-1]
    return lines[path]


def dotted(path: Path_) -> str:
    """A path as messages name it."""
    return ".".join(str(part) for part in path)
