"""The form in which a person edits an entry, as the edit that `penstock errors edit --set` would make of it.

Fields are called `as.<change>.<image>.<column>` (`text`, `null` or `absent`) and `value.<change>.<image>.<column>`,
and `skip.<change>` for a change to be left out. Whatever is as the source committed it is no edit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.apply.entry_edits import AbsentValue, EntryEdit, Setting, by_settings, read_place
from penstock.change import Change, Image, Transaction
from penstock.errors import ConfigError
from penstock.external_values import ExternalValue

_TEXT, _NULL, _ABSENT = "text", "null", "absent"


def kind_of(image: Image | None, column: str) -> str:
    """How a value begins in the form."""
    if image is None or column not in image:
        return _ABSENT
    return _NULL if image[column] is None else _TEXT


def can_edit(image: Image | None, column: str) -> bool:
    """Whether a value may be given another text here; one that lies beside its row may not."""
    return image is not None and not isinstance(image.get(column), ExternalValue)


def read_edit(form: Mapping[str, str], transaction: Transaction) -> EntryEdit | None:
    """Return what a form says that is not as the source committed it; None where nothing is.

    Raises:
        ConfigError: A field is not such a one.
    """
    settings, skipped, changes = [], [], list(transaction.changes)
    for name, given in form.items():
        kind, _, place = name.partition(".")
        if kind == "skip":
            skipped.append(_number(place))
        elif kind == "as":
            setting = _setting(place, given, form.get(f"value.{place}", ""), changes)
            settings += [setting] if setting is not None else []
    return by_settings(settings, skipped) if settings or skipped else None


def _number(text: str) -> int:
    if not (text.isdecimal() and len(text) < 10):
        raise ConfigError("the form leaves out what is not a change", do="load the page again")
    return int(text)


def _setting(place: str, kind: str, text: str, changes: Sequence[Change]) -> Setting | None:
    """What a field sets; None where that is the value that the change has."""
    value: str | AbsentValue | None = {_NULL: None, _ABSENT: AbsentValue.ABSENT}.get(kind, _as_sent(text))
    setting = read_place(place, value if not isinstance(value, str) else None, option="the form")
    if not 1 <= setting.number <= len(changes):
        # The edit says so, with the number of changes that there are.
        return Setting(setting.number, setting.image, setting.column, value)
    change = changes[setting.number - 1]
    image = (change.before if setting.image == "before" else change.after) or {}
    column = _column(setting.column, change)
    was = image.get(column, AbsentValue.ABSENT)
    if was == value or (isinstance(was, str) and isinstance(value, str) and _as_sent(was) == value):
        return None
    return Setting(setting.number, setting.image, column, value)


def _column(sent: str, change: Change) -> str:
    """The column that a field names, whose line ends are as the browser sends them."""
    alike = [one for one in {**(change.before or {}), **(change.after or {})} if _as_sent(one) == _as_sent(sent)]
    return alike[0] if len(alike) == 1 else sent


def _as_sent(text: str) -> str:
    """A text with the line ends that it has in a database; a browser sends every one as CR LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
