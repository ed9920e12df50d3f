"""Groups of options: a command takes a group as one value, where typer knows only single options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Show typer the fields of each parameter that is a dataclass, in its place; the command is given the value."""
    known = signature(command, eval_str=True).parameters
    types = {name: one.annotation for name, one in known.items()}
    groups = {name: type_ for name, type_ in types.items() if isinstance(type_, type) and is_dataclass(type_)}
    shown: list[Parameter] = []
    for name, one in known.items():
        group = groups.get(name)
        if group is None:
            shown.append(one.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(group, include_extras=True)
        shown += [
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
            for field in fields(group)
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__signature__ = Signature(shown)  # type: ignore[attr-defined]  # where `inspect`, and so typer, looks first
    run.__annotations__ = {one.name: one.annotation for one in shown}
    return run
