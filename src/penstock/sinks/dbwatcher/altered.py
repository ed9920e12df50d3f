"""DDL of the change stream as messages can tell it."""

from __future__ import annotations

from dataclasses import replace

import orjson

from penstock.apply.apply_errors import ApplyError
from penstock.apply.ddl import alteration, is_rename, name_before
from penstock.change import Change


def alters(change: Change) -> bool:
    """Whether DDL changes what receivers have of a table: not an index, or the way that it is stored."""
    image = change.before or {}
    was, now = (orjson.loads(text) if (text := image.get(part)) is not None else {} for part in ("was", "is"))
    return any(was.get(part) != now.get(part) for part in ("schema", "name", "key", "columns"))


def as_messages_tell(change: Change) -> Change:
    """DDL as messages can tell it: of a table that was renamed, that there is none of its name any more.

    Under its new name the table is created and filled by a first copy. Of a table that was altered the receiver is told
    what cannot be known of its rows, since it does not have the statement.
    """
    image = change.before or {}
    if is_rename(change):
        return replace(change, table=name_before(change), before={**image, "is": None})
    try:
        unclear = alteration(change).unclear
    except ApplyError:
        # The two versions do not tell what was done, which the image says (`unlike`).
        return change
    return replace(change, before={**image, "unclear": orjson.dumps(dict(unclear)).decode()}) if unclear else change
