"""Other values for the changes of an entry of the error queue, for the one retry that applies them.

The entry keeps what the source committed: a retry that fails leaves it as it was (ADR 43).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, TypeAlias

from penstock.apply.error_queue import ErrorEntry
from penstock.apply.target import TargetCatalog
from penstock.change import Change, Image, Op, Transaction
from penstock.errors import ConfigError, OperatorError
from penstock.external_values import ExternalValue
from penstock.text import nearest

Numbered: TypeAlias = tuple[int, Change]
"""A change and its number in the transaction, from 1."""

EditFunction: TypeAlias = Callable[[Change, ErrorEntry, int], "Change | None"]
"""A function of the user's own: it is given each change of an entry in order, the entry, and the change's number from
1, and returns the change to apply instead, or None to leave it out."""


@dataclass(frozen=True)
class EditedEntry:
    """What to apply of an entry.

    Attributes:
        edits: Which values are not the source's, as `2.before.price`, and which changes are left out, as `2`.
    """

    changes: Sequence[Numbered]
    edits: Sequence[str] = ()


EntryEdit: TypeAlias = Callable[[ErrorEntry, Transaction, TargetCatalog], EditedEntry]
"""Says what to apply of an entry, by the tables of the target.

Raises ConfigError where what a person asked for does not fit the entry, OperatorError where a function of theirs fails.
"""


def as_committed(_: ErrorEntry, whole: Transaction, __: TargetCatalog) -> EditedEntry:
    """Apply what the source committed."""
    return EditedEntry(list(enumerate(whole.changes, start=1)))


class AbsentValue(Enum):
    """Stands for a column that an image does not have."""

    ABSENT = auto()


@dataclass(frozen=True)
class Setting:
    """One column of one image of a change, and its value; absent, it is taken out of the image."""

    number: int
    image: str
    column: str
    value: str | AbsentValue | None

    @property
    def place(self) -> str:
        """How people write it."""
        return f"{self.number}.{self.image}.{self.column}"


_PLACE = re.compile(r"(?P<number>[0-9]{1,9})\.(?P<image>before|after)\.(?P<column>.+)", re.DOTALL)


def read_setting(text: str, *, option: str) -> Setting:
    """Read `2.before.price=10`.

    Raises:
        ConfigError: It is not of this form.
    """
    place, sign, value = text.partition("=")
    if not sign:
        raise _no_place(option, "2.before.price=10")
    return _setting(place, value, _no_place(option, "2.before.price=10"))


def read_place(text: str, value: AbsentValue | None, *, option: str) -> Setting:
    """Read `2.before.price`, whose value the option says. Raises as `read_setting` does."""
    return _setting(text, value, _no_place(option, "2.before.price"))


def _setting(place: str, value: str | AbsentValue | None, wrong: ConfigError) -> Setting:
    found = _PLACE.fullmatch(place)
    if found is None:
        raise wrong
    return Setting(int(found["number"]), found["image"], found["column"], value)


def _no_place(option: str, form: str) -> ConfigError:
    return ConfigError(
        f"{option} takes the number of a change, `before` or `after`, and a column, as {form}",
        do="`penstock errors show ID` numbers the changes; a column with '=' in its name is set in a file, by --from",
    )


def by_settings(settings: Sequence[Setting], skipped: Iterable[int]) -> EntryEdit:
    """Set single columns, and leave changes out."""
    left_out = set(skipped)

    def edit(_: ErrorEntry, whole: Transaction, catalog: TargetCatalog) -> EditedEntry:
        for number in sorted({setting.number for setting in settings} | left_out):
            if not 1 <= number <= len(whole.changes):
                raise _refused(f"there is no change {number}: the transaction has {len(whole.changes)}")
        made: list[Change | None] = [
            None if number in left_out else _with(change, [s for s in settings if s.number == number])
            for number, change in enumerate(whole.changes, start=1)
        ]
        return _checked(whole, made, catalog)

    return edit


def _with(change: Change, settings: Sequence[Setting]) -> Change:
    for setting in settings:
        image = change.before if setting.image == "before" else change.after
        if image is None:
            raise _refused(f"change {setting.number} is of operation {change.op}, which has no {setting.image!r}")
        values = dict(image)
        if not isinstance(setting.value, AbsentValue):
            values[setting.column] = setting.value
        elif values.pop(setting.column, AbsentValue.ABSENT) is AbsentValue.ABSENT:
            raise _refused(f"{setting.place}: there is no such column{nearest(setting.column, image)}")
        change = replace(change, before=values) if setting.image == "before" else replace(change, after=values)
    return change


def by_form(text: str) -> EntryEdit:
    """Apply what a form says: JSON as `penstock errors show --json` prints it; `"skip": true` leaves a change out.

    Of each change `number`, `op`, `table`, `before` and `after` are read; what else it holds is for people.

    Raises:
        ConfigError: It is not such JSON.
    """
    entry_id, forms = _read_form(text)

    def edit(entry: ErrorEntry, whole: Transaction, catalog: TargetCatalog) -> EditedEntry:
        if entry_id != entry.id:
            raise _refused(f"the form is of entry {entry_id!r}, not of {entry.id!r}")
        numbers = [form.get("number") for form in forms]
        if numbers != list(range(1, len(whole.changes) + 1)):
            raise _refused(
                f"the form must hold the changes 1 to {len(whole.changes)}, each once and in order",
                do='put back what is missing; "skip": true leaves a change out',
            )
        made = [
            _from_form(form, change, n) for n, (form, change) in enumerate(zip(forms, whole.changes, strict=True), 1)
        ]
        return _checked(whole, made, catalog)

    return edit


def _read_form(text: str) -> tuple[str, list[Mapping[str, Any]]]:
    try:
        form = json.loads(text, object_pairs_hook=_no_twice)
    except json.JSONDecodeError as exc:
        # Its text says what was expected, and quotes nothing.
        raise _refused(f"the form is not JSON: {exc.msg}", where=f"line {exc.lineno}, column {exc.colno}") from None
    except RecursionError:
        raise _refused("the form is not JSON that `penstock errors show --json` prints") from None
    changes = form.get("changes") if isinstance(form, dict) else None
    if not isinstance(changes, list) or not all(isinstance(change, dict) for change in changes):
        raise _refused("the form is not as `penstock errors show --json` prints it: it holds no list of changes")
    entry_id = form.get("id")
    if not isinstance(entry_id, str):
        raise _refused("the form does not say the id of its entry")
    return entry_id, changes


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _refused(f"{twice!r} is there twice in one object of the form")
    return found


def _from_form(form: Mapping[str, Any], change: Change, number: int) -> Change | None:
    skip = form.get("skip", False)
    if not isinstance(skip, bool):
        raise _refused(f'change {number}: "skip" is true or false')
    if skip:
        return None
    if form.get("table") != str(change.table):
        raise _refused(f"change {number} is of table {change.table}; another table cannot be given")
    try:
        op = Op(form.get("op", ""))
    except ValueError:
        raise _refused(f"change {number}: {form.get('op')!r} is not an operation") from None
    images = {}
    for name in ("before", "after"):
        image = form.get(name)
        if not (image is None or isinstance(image, dict)):
            raise _refused(f"change {number}: {name!r} is an object of columns, or null")
        for column, value in (image or {}).items():
            if not (value is None or isinstance(value, str)):
                raise _refused(
                    f"change {number}: {name}.{column} is not a text",
                    do='write every value in quotes, as "10" or "true", and SQL NULL as null',
                )
        # What is told about a value stays that, and does not become its text.
        old = (change.before if name == "before" else change.after) or {}
        kept = {n: v for n, v in old.items() if isinstance(v, ExternalValue) and (image or {}).get(n) == v}
        images[name] = None if image is None else {**image, **kept}
    return replace(change, op=op, before=images["before"], after=images["after"])


def by_function(function: EditFunction, name: str | None = None) -> EntryEdit:
    """Have a function of the user's own look at every change; `name` is what messages call it."""
    name = name or function.__qualname__

    def edit(entry: ErrorEntry, whole: Transaction, catalog: TargetCatalog) -> EditedEntry:
        made = []
        for number, change in enumerate(whole.changes, start=1):
            try:
                new = function(change, entry, number)
            except (Exception, SystemExit) as exc:
                # Leave out the error's text and its cause: both may repeat a value.
                raise OperatorError(
                    f"{name!r} failed: {type(exc).__name__}", where=f"change {number}", do="fix the function"
                ) from None
            if not (new is None or isinstance(new, Change)):
                raise OperatorError(
                    f"{name!r} returned {type(new).__name__}, neither a Change nor None",
                    where=f"change {number}",
                    do="fix the function",
                )
            made.append(new)
        return _checked(whole, made, catalog)

    return edit


_SHAPES = {
    Op.INSERT: (False, True),
    Op.UPDATE: (True, True),
    Op.DELETE: (True, False),
    Op.SNAPSHOT: (False, True),
}
"""Which images a change of a row has: before, after."""


def _checked(whole: Transaction, made: Sequence[Change | None], catalog: TargetCatalog) -> EditedEntry:
    """Make sure that edited changes are such as could have been captured, and say what was edited.

    Raises:
        ConfigError: One is not; whether the target takes its values shows when it is applied.
    """
    changes: list[Numbered] = []
    edits: list[str] = []
    for number, (old, new) in enumerate(zip(whole.changes, made, strict=True), start=1):
        if new is None:
            edits.append(str(number))
            continue
        if new != old:
            _check(number, old, new, catalog)
            edits += _edits(number, old, new)
        changes.append((number, new))
    return EditedEntry(changes, edits)


def _check(number: int, old: Change, new: Change, catalog: TargetCatalog) -> None:
    if old.op not in _SHAPES:
        raise _refused(f"change {number} is of operation {old.op}, which can only be left out")
    if new.op not in _SHAPES:
        raise _refused(f"change {number} cannot be made one of operation {new.op}")
    if (new.table, new.table_version, new.change_seq) != (old.table, old.table_version, old.change_seq):
        raise _refused(f"change {number}: only operation, `before` and `after` can be edited")
    for name, was, image in (("before", old.before, new.before), ("after", old.after, new.after)):
        for column, value in (image or {}).items():
            if isinstance(value, str) and "\0" in value and value != (was or {}).get(column):
                raise _refused(f"change {number}: {name}.{column} holds a zero byte (NUL), which no database keeps")
    for name, image, is_due in zip(("before", "after"), (new.before, new.after), _SHAPES[new.op], strict=True):
        if (image is not None) != is_due:
            has = "has" if is_due else "has no"
            raise _refused(f"change {number}: operation {new.op} {has} {name!r}")
    table = catalog.tables.get(new.table)
    if table is None:
        # Whatever is edited, there is nothing to apply it to; applying it will say so.
        return
    for name, image in (("before", new.before), ("after", new.after)):
        for column in image or {}:
            if column not in table.schema.by_name:
                known = nearest(column, table.schema.by_name)
                raise _refused(f"change {number}: {name}.{column} is not a column of {new.table} at the target{known}")
    found_by = "after" if new.before is None else "before"
    key = new.after if new.before is None else new.before
    for column in table.key.columns if table.key.is_declared else ():
        if column not in (key or {}):
            raise _refused(f"change {number}: {found_by} lacks key column {column!r} of {new.table}")


def _edits(number: int, old: Change, new: Change) -> Iterator[str]:
    if new.op is not old.op:
        yield f"{number}.op"
    for name, was, now in (("before", old.before, new.before), ("after", old.after, new.after)):
        yield from (f"{number}.{name}.{column}" for column in _differing(was or {}, now or {}))


def _differing(was: Image, now: Image) -> list[str]:
    columns = {**was, **now}
    return [name for name in columns if was.get(name, AbsentValue.ABSENT) != now.get(name, AbsentValue.ABSENT)]


def _refused(what: str, *, where: str = "", do: str = "") -> ConfigError:
    return ConfigError(f"the edit does not fit: {what}", where=where, do=do or "nothing was applied")
