"""Every message that the code raises on purpose, read from its source without running it.

A message is the first argument, `what`, of an error class of `penstock.errors` or of one made from it, the text of a
fault of the pipeline file, or a `ValueError` of the file's checks. A value in it is an ellipsis: `cannot read …: …`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

VALUE = "…"
# Nobody reads these: they tell another part of the program to go another way.
INTERNAL = {"SpeculationError", "TablesAddedError", "_StormError", "_AnewError", "TransactionError", "ContentionError"}
ROOTS = {
    "PenstockError",
    "ConfigError",
    "OperatorError",
    "TooManyErrorsError",
    "TableError",
    "HandlerError",
    "RetryableError",
    "FencedError",
    "MalformedInputError",
}
# Their texts are lines of a ConfigError; the text is the second argument.
FAULTS = {"Fault", "fault"}


@dataclass(frozen=True)
class Message:
    """One text that may be raised.

    Attributes:
        kind: The class of the error, or `Fault`.
        what: What it says, with an ellipsis for each value.
        do: What it says to do; empty if it says nothing.
        number: The name of the error queue's number, of an `ApplyError`.
        files: Where it is raised, below `src/penstock`.
    """

    kind: str
    what: str
    do: str
    number: str = ""
    files: tuple[str, ...] = ()


@dataclass
class Found:
    """All messages of a tree of code.

    Attributes:
        messages: In the order of files, one for each text.
        passed_on: Places whose text is another error's, or is made elsewhere, as `file: code`.
    """

    messages: list[Message] = field(default_factory=list)
    passed_on: list[str] = field(default_factory=list)


@cache
def messages(folder: Path) -> Found:
    """All messages below a folder of Python."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}
    kinds = _kinds(trees) - INTERNAL
    found: dict[tuple[str, str, str], Message] = {}
    passed_on = []
    for path, tree in trees.items():
        file = path.relative_to(folder).as_posix()
        of_file = _FileOfMessages(tree)
        for call, scope in of_file.calls():
            kind = _name(call)
            is_check = kind == "ValueError" and file.startswith("config/")
            if kind not in kinds and kind not in FAULTS and not is_check:
                continue
            pairs, number = of_file.read(call, scope, kind)
            if not pairs:
                passed_on.append(f"{file}: {ast.unparse(call)}")
            for what, do in pairs:
                key = kind, what, do
                before = found.get(key, Message(kind, what, do, number))
                files = tuple(dict.fromkeys([*before.files, file]))
                found[key] = Message(kind, what, do, number, files)
    return Found(list(found.values()), passed_on)


def _kinds(trees: Mapping[Path, ast.Module]) -> set[str]:
    """The names of the error classes and of all that are made from them."""
    bases = {
        node.name: {base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases}
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    kinds = set(ROOTS)
    while more := {name for name, above in bases.items() if above & kinds} - kinds:
        kinds |= more
    return kinds


class _FileOfMessages:
    """One file: its calls, and what the names in them stand for."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._asked: set[str] = set()
        self._functions: dict[str, list[list[ast.AST]]] = {}
        for function, scope in _functions(tree, [tree]):
            self._functions.setdefault(function.name, []).append([function, *scope])

    def calls(self) -> Iterator[tuple[ast.Call, list[ast.AST]]]:
        """Each call with the functions around it, the nearest first, and the file."""
        yield from self._calls(self._tree, [self._tree])

    def _calls(self, node: ast.AST, scope: list[ast.AST]) -> Iterator[tuple[ast.Call, list[ast.AST]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                yield child, scope
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from self._calls(child, [child, *scope] if is_function else scope)

    def read(self, call: ast.Call, scope: list[ast.AST], kind: str) -> tuple[list[tuple[str, str]], str]:
        """Each text of an error with what it says to do, and its number."""
        place = 1 if kind in FAULTS or kind == "ApplyError" else 0
        named = {word.arg: word.value for word in call.keywords}
        what = named.get("what", call.args[place] if len(call.args) > place else None)
        number = ast.unparse(call.args[0]).rpartition(".")[2] if kind == "ApplyError" and call.args else ""
        return ([] if what is None else self._pairs(call, what, named.get("do"), scope)), number

    def _pairs(self, at: ast.Call, what: ast.expr, do: ast.expr | None, scope: list[ast.AST]) -> list[tuple[str, str]]:
        """What it says and what it says to do, which belong together where both are set or given together."""
        around = scope[0]
        is_given = isinstance(what, ast.Name) and what.id in _parameters(around) and not _values(around, what.id, at)
        if is_given and isinstance(what, ast.Name) and isinstance(around, ast.FunctionDef):
            return self._given(around, what.id, do, scope)
        texts = self._texts(what, scope, at)
        dos = [] if do is None else self._texts(do, scope, at)
        if len(texts) == len(dos):
            return list(zip(texts, dos, strict=True))
        return [(text, dos[0] if len(dos) == 1 else "") for text in texts]

    def _given(
        self, function: ast.FunctionDef, what: str, do: ast.expr | None, scope: list[ast.AST]
    ) -> list[tuple[str, str]]:
        """What calls in this file give a function that raises what it is given."""
        if function.name in self._asked:
            return []
        self._asked.add(function.name)
        own = "" if do is None else next(iter(self._texts(do, scope, function)), "")
        pairs = []
        for call, around in self.calls():
            text = _argument(call, function, what) if _name(call) == function.name else None
            if text is not None:
                advice = _argument(call, function, do.id) if isinstance(do, ast.Name) else None
                pairs += [(one, said or own) for one, said in self._pairs(call, text, advice, around)]
        self._asked.discard(function.name)
        return pairs

    def _texts(self, node: ast.expr, scope: list[ast.AST], at: ast.AST) -> list[str]:
        """What an expression may be where `at` stands: one text for each branch; none if nothing of it is here."""
        match node:
            case ast.Constant(value=str() as text):
                return [text]
            case ast.JoinedStr():
                return [_joined(node)]
            case ast.IfExp():
                return [*self._texts(node.body, scope, at), *self._texts(node.orelse, scope, at)]
            case ast.BoolOp():
                return [text for value in node.values for text in self._texts(value, scope, at)]
            case ast.BinOp(op=ast.Add()):
                left = self._texts(node.left, scope, at) or [VALUE]
                right = self._texts(node.right, scope, at) or [VALUE]
                return [text for a in left for b in right if (text := a + b).strip(VALUE)]
            case ast.Name():
                return self._assigned(node.id, scope, at)
            case ast.Call(func=ast.Attribute(value=inner, attr="format")):
                return [re.sub(r"\{[^}]*\}", VALUE, text) for text in self._texts(inner, scope, at)]
            case ast.Call():
                return self._returned(_name(node))
            case _:
                return []

    def _assigned(self, name: str, scope: list[ast.AST], at: ast.AST) -> list[str]:
        """What a name may be set to in the nearest function that sets it, or in the file."""
        for around in scope:
            values = _values(around, name, at if around is scope[0] else None)
            if values or name in _parameters(around):
                return [text for value in values for text in self._texts(value, scope, value)]
        return []

    def _returned(self, function: str) -> list[str]:
        """What a function of this file returns."""
        if function in self._asked:
            return []
        self._asked.add(function)
        texts = [
            text
            for scope in self._functions.get(function, ())
            for node in ast.walk(scope[0])
            if isinstance(node, ast.Return) and node.value is not None
            for text in self._texts(node.value, scope, node)
        ]
        self._asked.discard(function)
        return texts


def _argument(call: ast.Call, function: ast.FunctionDef, name: str) -> ast.expr | None:
    """What a call gives a function's parameter; what it is by itself where the call gives none."""
    for word in call.keywords:
        if word.arg == name:
            return word.value
    places = [one.arg for one in function.args.args if one.arg not in ("self", "cls")]
    at = places.index(name) if name in places else len(call.args)
    if at < len(call.args):
        return call.args[at]
    defaults = zip(reversed(places), reversed(function.args.defaults), strict=False)
    only = zip((one.arg for one in function.args.kwonlyargs), function.args.kw_defaults, strict=True)
    return dict([*defaults, *only]).get(name)


def _values(around: ast.AST, name: str, at: ast.AST | None) -> list[ast.expr]:
    """What a name may have been set to where `at` stands in a function or file; without `at`, anywhere in it."""
    if at is None:
        return [value for node in ast.walk(around) if (value := _set_to(node, name)) is not None]
    found: list[ast.expr] = []
    for block, place in reversed(_blocks(around, at)):
        for statement in reversed(block[:place]):
            values = [value for node in _passed(statement) if (value := _set_to(node, name)) is not None]
            found += values
            # Behind a plain assignment, and behind branches that all assign, nothing older is left.
            if values and (isinstance(statement, ast.Assign | ast.AnnAssign) or getattr(statement, "orelse", None)):
                return found
    return found


def _passed(statement: ast.AST) -> Iterator[ast.AST]:
    """Every node of a statement but the branches that what follows is not reached from."""
    yield statement
    if isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Raise | ast.Return | ast.Continue):
        children: list[ast.AST] = list(statement.orelse)
    else:
        children = list(ast.iter_child_nodes(statement))
    for child in children:
        yield from _passed(child)


def _blocks(around: ast.AST, at: ast.AST) -> list[tuple[list[ast.stmt], int]]:
    """The lists of statements around `at`, the outermost first, each with the place of the statement that holds it."""
    found = []
    node: ast.AST | None = around
    while node is not None:
        parts = [getattr(node, part, []) for part in ("body", "orelse", "finalbody", "handlers", "cases")]
        inside = None
        for block in (part for part in parts if isinstance(part, list)):
            for place, statement in enumerate(block):
                if any(one is at for one in ast.walk(statement)):
                    found.append((block, place))
                    inside = statement
        node = inside
    return found


def _functions(
    node: ast.AST, scope: list[ast.AST]
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, list[ast.AST]]]:
    """Each function below a node with what is around it, the nearest first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child, scope
            yield from _functions(child, [child, *scope])
        else:
            yield from _functions(child, scope)


def _set_to(node: ast.AST, name: str) -> ast.expr | None:
    """What an assignment gives a name; also one of several at once, `what, do = "...", "..."`."""
    if isinstance(node, ast.NamedExpr | ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.value if node.target.id == name else None
    if not isinstance(node, ast.Assign):
        return None
    for target in node.targets:
        if isinstance(target, ast.Name) and target.id == name:
            return node.value
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for one, value in zip(target.elts, node.value.elts, strict=False):
                if isinstance(one, ast.Name) and one.id == name:
                    return value
    return None


def _parameters(node: ast.AST) -> set[str]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    return {one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}


def _joined(node: ast.JoinedStr) -> str:
    parts = (part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
    return "".join(map(str, parts))


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
