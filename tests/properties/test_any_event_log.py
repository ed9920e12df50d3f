"""Any rows of an event log become the events and statuses that the rules say, written down a second time here.

The second writing goes by the rules one after the other, object by object, and knows nothing of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.change import TableName
from penstock.formats.xds.event import XdsEventKind
from penstock.logical import BINARY, STRING, integer
from penstock.schema import Column, ForeignKey, TableSchema, Unique
from penstock.sources.event_log.build import BuiltEvent, Current, build, lives, wanted
from penstock.sources.event_log.classes import Classes
from penstock.sources.event_log.rows import LogRow, Object, check

USR, PHONE = TableName("s", "usr"), TableName("s", "usr_phone")

CLASSES = Classes(
    [
        TableSchema(
            USR,
            (Column.of("idu", integer(32)), Column.of("fname", STRING), Column.of("photo", BINARY)),
            Unique("usr_pkey", ("idu",), ("idu",)),
        ),
        TableSchema(
            PHONE,
            (Column.of("idu", integer(32)), Column.of("no", STRING)),
            None,
            foreign_keys=(ForeignKey("f", PHONE, ("idu",), USR, ("idu",)),),
        ),
    ],
    schema="s",
)

TABLES = {"usr": "usr", "USR": "usr", "s.usr": "usr", "usr_phone": "usr_phone", "nosuch": None, None: None}
KEYS = {"idu=1": "1", "IDU= 01": "1", 'idu="+2"': "2", "idu=2": "2", "idu=x": None, "idu": None, None: None}
OF_USR = {
    "fname": "fname",
    "USR.fname": "fname",
    "photo": "photo",
    "usr_phone.no": "usr_phone.no",
    "usr_phone.NO": "usr_phone.no",
    "no": None,
    "idu": "idu",
}
OF_PHONE = {"no": "usr_phone.no", "usr_phone.no": "usr_phone.no", "usr_phone.NO": "usr_phone.no"}
BASE64 = {"": "", "qqo=": "qqo=", "u7s\n=": "u7s="}
WHOLE = ("fname", "photo", "usr_phone.no")

State = Mapping[str, Mapping[str, Sequence[str]]]
"""What is there now: values by attribute, by key."""


class Told(NamedTuple):
    """An event: its kind, the object's key, its attributes, and the rows behind it."""

    kind: str
    key: str
    attributes: Sequence[tuple[str, Sequence[tuple[str, Sequence[str]]]]]
    record_ids: frozenset[int]


class BadValueError(Exception):
    """A value that cannot be published."""


def value(attribute: str, text: str) -> str:
    if attribute == "photo":
        if text not in BASE64:
            raise BadValueError
        return BASE64[text]
    if attribute == "idu":
        raise BadValueError  # None of the texts is a number.
    if "\x01" in text:
        raise BadValueError
    return text


def attribute_of(row: LogRow) -> str | None:
    known = OF_USR if TABLES[row.table_name] == "usr" else OF_PHONE
    return known.get(row.column_name or "")


def is_usable(row: LogRow) -> bool:
    type_, table = int(str(row.event_type)), TABLES[row.table_name]
    if not 1 <= type_ <= 8 or table is None or (table == "usr_phone" and type_ in (4, 5, 6)):
        return False
    return KEYS[row.table_key] is not None and (type_ in (4, 5, 6) or attribute_of(row) is not None)


def expected(rows: Sequence[LogRow], state: State) -> tuple[list[Told], dict[int, str]]:
    """The events in order, and the statuses of rows that have none."""
    statuses = {row.record_id: "E" for row in rows if not is_usable(row)}
    found: list[tuple[int, Told]] = []

    def event(kind: str, key: str, attributes: Any, behind: Sequence[LogRow]) -> None:
        if not behind:
            return
        if kind == "modify" and not attributes:
            statuses.update({row.record_id: "S" for row in behind})
            return
        ids = frozenset(row.record_id for row in behind)
        found.append((min(ids), Told(kind, key, attributes, ids)))

    usable = [row for row in rows if is_usable(row)]
    for key in ("1", "2"):
        own = [row for row in usable if KEYS[row.table_key] == key]
        runs = [(is_delete, list(run)) for is_delete, run in groupby(own, lambda row: row.event_type == "4")]
        for at, (is_delete, run) in enumerate(runs):
            if is_delete:
                event("delete", key, [], run)
                continue
            is_seen = not any(later for later, _ in runs[at:]) and key in state
            if any(row.event_type in ("5", "6") for row in run):
                is_add = any(row.event_type in ("1", "5", "7") for row in run)
                try:
                    shown = [(name, now(state[key], name, is_add=is_add)) for name in WHOLE] if is_seen else []
                except BadValueError:
                    statuses.update({row.record_id: "E" for row in run})
                    continue
                if is_seen:
                    event("add" if is_add else "modify", key, [(n, s) for n, s in shown if s], run)
                else:
                    statuses.update({row.record_id: "W" for row in run})
                continue
            fields(run, key, state if is_seen else {}, statuses, event)
    return [told for _, told in sorted(found, key=lambda one: one[0])], statuses


def fields(run: Sequence[LogRow], key: str, state: State, statuses: dict[int, str], event: Any) -> None:
    """A life without rows of type 5 and 6."""
    steps: dict[str, dict[str, list[Any]]] = {"add": {}, "modify": {}}
    behind: dict[str, list[LogRow]] = {"add": [], "modify": []}
    first: dict[tuple[str, str], int] = {}
    for name in dict.fromkeys(attribute_of(row) for row in run):
        assert name is not None
        own = [row for row in run if attribute_of(row) == name]
        if any(row.event_type in ("7", "8") for row in own):
            is_add = any(row.event_type in ("1", "7") for row in own)
            kind = "add" if is_add else "modify"
            if key not in state:
                statuses.update({row.record_id: "W" for row in own})
                continue
            try:
                steps[kind][name] = now(state[key], name, is_add=is_add)
            except BadValueError:
                statuses.update({row.record_id: "E" for row in own})
                continue
            behind[kind] += own
            first[kind, name] = own[0].record_id
            continue
        for row in own:
            kind = "add" if row.event_type == "1" else "modify"
            try:
                made = logged(row, name)
            except BadValueError:
                statuses[row.record_id] = "E"
                continue
            behind[kind].append(row)
            first.setdefault((kind, name), row.record_id)
            before = steps[kind].setdefault(name, [])
            if kind == "add":
                kept = [text for _, texts in before for text in texts] if name == "usr_phone.no" else []
                texts = kept + [text for _, texts in made for text in texts]
                steps[kind][name] = [("add-value", texts)] if texts else []
            else:
                before += made
    for kind in ("add", "modify"):
        ordered = sorted(steps[kind], key=lambda name: first[kind, name])
        event(kind, key, [(name, steps[kind][name]) for name in ordered if steps[kind][name]], behind[kind])


def logged(row: LogRow, name: str) -> list[tuple[str, list[str]]]:
    old, new = row.old_value, row.new_value
    made: list[tuple[str, list[str]]] = []
    if row.event_type == "2" and old is not None:
        made.append(("remove-value", [value(name, old)]))
    if row.event_type == "3":
        made.append(("remove-all-values", []))
    if new is not None:
        made.append(("add-value", [value(name, new)]))
    return made


def now(row: Mapping[str, Sequence[str]], name: str, *, is_add: bool) -> list[tuple[str, list[str]]]:
    texts = sorted(value(name, text) for text in row.get(name, ())) if name != "idu" else ["1"]
    made: list[tuple[str, list[str]]] = [] if is_add else [("remove-all-values", [])]
    return made + ([("add-value", texts)] if texts else [])


def actual(rows: Sequence[LogRow], state: State) -> tuple[list[Told], dict[int, str]]:
    usable, unusable = check(rows, CLASSES, needs_time=False)
    found = lives(usable)
    current: dict[Object, Current] = {}
    for asked in wanted(found).values():
        for of in asked.objects:
            there = state.get(of.key[0])
            if there is not None:
                values = {a: ["1"] if a.name == "idu" else there.get(a.name, ()) for a in asked.attributes}
                current[of] = Current(values)
    events, settled = build(found, current)
    statuses = {id_: str(one.outcome) for id_, one in (unusable | settled).items()}
    return [told(event) for event in events], statuses


def told(built: BuiltEvent) -> Told:
    attributes = [
        (one.name, [(str(step), [v.text for v in values]) for step, values in one.operations])
        for one in built.event.attributes
    ]
    assert len(set(built.record_ids)) == len(built.record_ids)
    assert built.event.association == f"idu={built.object.key[0]},table=usr,schema=s"
    return Told(XdsEventKind(built.event.kind).value, built.object.key[0], attributes, frozenset(built.record_ids))


TEXTS = st.sampled_from([None, "", "a", "qqo=", "u7s\n=", "\x01"])

ROWS = st.lists(
    st.tuples(
        st.sampled_from("123456781234567809"),
        st.sampled_from([*TABLES, "usr", "usr", "usr", "usr_phone"]),
        st.sampled_from([*KEYS, "idu=1", "idu=1", "idu=2"]),
        st.sampled_from([*OF_USR, *OF_PHONE, "fname", "photo", "usr_phone.no", None, ""]),
        TEXTS,
        TEXTS,
    ),
    max_size=14,
)

STATES = st.dictionaries(
    st.sampled_from("12"),
    st.fixed_dictionaries(
        {},
        optional={
            "fname": st.sampled_from([["now"], [""], ["\x01"]]),
            "photo": st.just(["qqo="]),
            "usr_phone.no": st.sampled_from([["2", "1", "1"], ["\x01"]]),
        },
    ),
)


@settings(deadline=None, max_examples=600)
@given(rows=ROWS, state=STATES)
def test_any_rows_become_what_the_rules_say(rows: Sequence[tuple[Any, ...]], state: State) -> None:
    log = [LogRow(id_, type_, True, 0, *others) for id_, (type_, *others) in enumerate(rows, start=1)]

    found, statuses = actual(log, state)

    assert (found, statuses) == expected(log, state)
    # Each row has either an event or a status of its own.
    behind = [id_ for one in found for id_ in one.record_ids]
    assert sorted([*behind, *statuses]) == [row.record_id for row in log]
