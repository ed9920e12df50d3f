"""Wherever a receiver begins, setup makes the table that the ALTERs behind that place speak of."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.change import TableName
from penstock.position import START, Scn
from tests.sources.dbwatcher.messages import CREATE, OPEN, cols, ddl, message, row
from tests.sources.dbwatcher.test_source import Folder, read

T = TableName("public", "t")

TYPES = {
    "integer(32)": "type='int4' sqlType='4'",
    "integer(64)": "type='int8' sqlType='-5'",
    "string": "type='text' sqlType='12'",
    "boolean": "type='bool' sqlType='-7'",
}

Columns = Sequence[tuple[str, str]]
"""Names and types."""


def colnames(columns: Columns, before: dict[str, str] | None = None) -> str:
    found = []
    for pos, (name, kind) in enumerate(columns, 1):
        key = " nullable='0' pk='true' pkName='t_pk'" if name == "id" else " nullable='1'"
        was = "" if before is None else f" was='{before.get(name, '')}'"
        found.append(f"<colname {TYPES[kind]} pos='{pos}'{key}{was}>{name}</colname>")
    return "".join(found)


def created(columns: Columns, key: int) -> str:
    head, tail = CREATE[: CREATE.index("     <colname")], CREATE[CREATE.index("     <attr name='action'") :]
    tail = tail.replace(">1</attr>", f">{key}</attr>").replace("0.1", f"0.{key}").replace(">2</attr>", f">{key}</attr>")
    return head + colnames(columns) + tail


class History:
    """Messages about a table whose columns are altered at random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._key = 100
        self.columns: list[tuple[str, str]] = [("id", "integer(32)"), ("a", "string")]
        self.messages: list[str] = []
        if self._random.random() < 0.5:
            self._others()
        self._create()
        steps = [self._rows, self._rows, self._others, self._alter, self._alter, self._create, self._drop]
        for step in self._random.choices(steps, k=self._random.randint(1, 12)):
            step()

    def _next(self) -> int:
        self._key += 1
        return self._key

    def _rows(self) -> None:
        key = self._next()
        self.messages.append(message(str(key), row("INSERT", cols(id=str(key)), key, str(key))))

    def _others(self) -> None:
        key = self._next()
        other = row("INSERT", cols(id=str(key)), key, str(key)).replace(">t<", ">u<")
        self.messages.append(message(str(key), other))

    def _create(self) -> None:
        if self._random.random() < 0.4:
            self.columns = [*self.columns[:1], ("abcd"[self._random.randrange(4)], self._random.choice(list(TYPES)))]
        self.messages.append(created(self.columns, self._next()))

    def _drop(self) -> None:
        key = self._next()
        self.messages.append(ddl("DROP", str(key), key))
        if self._random.random() < 0.5:
            self._others()
        self._create()

    def _alter(self) -> None:
        key, before = self._next(), {name: name for name, _ in self.columns}
        free = [name for name in "abcdef" if name not in before]
        at = self._random.randrange(1, len(self.columns)) if len(self.columns) > 1 else 0
        kind, what = self._random.choice(list(TYPES)), self._random.randrange(4)
        if at == 0 or what == 0:
            self.columns.append((free[0], kind))
        elif what == 1:
            old, kept = self.columns[at]
            self.columns[at] = (free[-1], kept)
            before[free[-1]] = before.pop(old)
        elif what == 2:
            before.pop(self.columns.pop(at)[0])
        else:
            self.columns[at] = (self.columns[at][0], kind)
        is_open = self._random.random() < 0.3
        more = colnames(self.columns, before) + (OPEN if is_open else "")
        self.messages.append(ddl("ALTER", str(key), key, more=more))
        if is_open:
            if self._random.random() < 0.5:
                self._others()
            self.messages.append(message(str(key), row("INSERT", cols(id=str(key)), self._next(), str(key))))


def shape(image: dict[str, Any], part: str) -> dict[str, str] | None:
    told = json.loads(image.get(part) or "null")
    return None if told is None else {one["name"]: one["type"] for one in told["columns"].values()}


@pytest.mark.parametrize("seed", range(150))
def test_a_receiver_that_begins_anywhere_has_the_table_that_the_next_alter_speaks_of(tmp_path: Path, seed: int) -> None:
    history = History(seed)
    messages = Folder(tmp_path, *history.messages).open()

    def standing(position: Scn) -> dict[str, str] | None:
        found = messages.standing_at(T, position)
        return None if found is None else {one.name: str(one.logical) for one in found.columns}

    transactions, after = [], START
    while (part := messages.next_slice(after)) is not None:
        transactions += part.commit_scns.tolist()
        after = part.end
    changes = read(messages)
    assert len(changes) == len(transactions)
    places = [START, *map(Scn, transactions)]
    for first, place in enumerate(places):
        now = standing(place)
        for at in range(first, len(places)):
            if at > first and messages.begins([T], places[at]).keys() == {places[at]}:
                # It has begun here, so setup has made it anew.
                now = standing(places[at])
            for op, image, _ in changes[at] if at < len(changes) else ():
                if op == "ddl":
                    assert "unlike" not in image
                    assert shape(image, "was") == now, (place, places[at + 1])
                    now = shape(image, "is")
        assert now == dict(history.columns)
