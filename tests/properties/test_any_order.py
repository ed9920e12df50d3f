"""Whatever the plan does not link may be applied in any order: no constraint notices, and the same rows are left.

Histories of rows of a mail table and of notes that refer to them, by key and by a unique value, are legal in the order
of their commits. The plan sees changes that tell only a part of their old rows, or rows of a snapshot in their place; a
small model of a database then applies the lanes in random interleavings. The constraints may also be such as only the
application knows, and the user tells as value dependencies.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.apply.virtual_dependencies import NONE, ValueDependency, VirtualDependencies
from penstock.schema import TableSchema
from tests.apply.test_dependency_keys import find, integer, name, references, table, together, unique
from tests.hand_made import Lcr, T, delete, insert, update

MAIL = table("mail", integer("v"), uniques=(unique("v"),))
NOTE = table(
    "note",
    integer("mid"),
    integer("v"),
    foreign_keys=(*references("note", ["mid"], "mail", ["id"]), *references("note", ["v"], "mail", ["v"])),
)

# The same tables of a database that knows of no constraint but the keys, and what the user says in their place.
BARE = (table("mail", integer("v")), table("note", integer("mid"), integer("v")))
TOLD = VirtualDependencies(
    values=(
        ValueDependency("mail of a note", {name("mail"): ("id",), name("note"): ("mid",)}),
        ValueDependency("address", {name("mail"): ("v",), name("note"): ("v",)}),
    )
)


class World:
    """Rows of mail and note, by table and key, as a database with their constraints would hold them."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, dict[str, Any]]] = {"mail": {}, "note": {}}

    def apply(self, changes: Sequence[Lcr]) -> bool:
        """Apply a transaction; False, and nothing done, where a row is missing or a constraint broken."""
        rows = {table: dict(of) for table, of in self.rows.items()}
        for change in changes:
            of = rows[change.table]
            if change.before is not None and of.pop(change.before["id"], None) is None:
                return False
            if change.after is not None:
                made = {**(change.before or {}), **change.after}
                taken = [row["v"] for row in of.values() if change.table == "mail" and row["v"] is not None]
                if made["id"] in of or made["v"] in taken:
                    return False
                of[made["id"]] = made
        values = {None, *(row["v"] for row in rows["mail"].values())}
        if any(n["v"] not in values or n["mid"] not in {None, *rows["mail"]} for n in rows["note"].values()):
            return False
        self.rows = rows
        return True


EntryAction = tuple[str, int, str, dict[str, Any]]


def deed(chance: random.Random) -> EntryAction:
    """Something to do to a row: put it in place, delete it, or give it another key."""
    table_name = chance.choice(["mail", "mail", "note"])
    kind = chance.choice(["put", "put", "delete", "move"] if table_name == "mail" else ["put", "delete"])
    id_, value = chance.randint(1, 6), chance.choice([None, None, 1, 2, 3])
    if kind == "move":
        return table_name, id_, kind, {"id": chance.randint(1, 6)}
    return (
        table_name,
        id_,
        kind,
        {"v": value} if table_name == "mail" else {"mid": chance.choice([None, *range(1, 7)]), "v": value},
    )


@pytest.mark.rule("A-31", "A-32", "A-49", "A-224")
@pytest.mark.parametrize("seed", range(300))
@pytest.mark.parametrize(("tables", "virtual"), [((MAIL, NOTE), NONE), (BARE, TOLD)], ids=["constraints", "told"])
def test_whatever_is_not_linked_may_be_applied_in_any_order(
    tables: tuple[TableSchema, ...], virtual: VirtualDependencies, seed: int
) -> None:
    chance = random.Random(seed)
    world = World()
    for _ in range(12):
        world.apply(done(world, [deed(chance)]))
    begin = world.rows
    transactions = []
    for _ in range(chance.randint(4, 14)):
        changes = done(world, [deed(chance) for _ in range(chance.choice([1, 1, 2]))])
        if changes and world.apply(changes):
            transactions.append(changes)
    told = [T(n, *(less(change, chance) for change in changes)) for n, changes in enumerate(transactions)]
    if not told:
        return

    found = find(tables, told, batches=1, virtual=virtual)

    lanes = [list(range(n, n + 1)) for n in range(len(told))]
    for members in together(found, len(told)):
        lanes = [lane for lane in lanes if not members.issuperset(lane)] + [sorted(members)]
    for _ in range(5):
        replica = World()
        replica.rows = begin
        waiting = [list(lane) for lane in lanes]
        while waiting:
            lane = chance.choice(waiting)
            assert replica.apply(transactions[lane.pop(0)])
            waiting = [lane for lane in waiting if lane]
        assert replica.rows == world.rows


def done(world: World, deeds: list[EntryAction]) -> list[Lcr]:
    """The changes that deeds make, as far as they follow from the rows before."""
    changes = []
    for table_name, id_, kind, new in deeds:
        old = world.rows[table_name].get(id_)
        if any(change.table == table_name for change in changes):
            continue
        if old is None:
            if kind == "put":
                changes.append(insert(table_name, id=id_, **new))
        elif kind == "delete":
            changes.append(delete(table_name, **old))
        else:
            changed = {column: value for column, value in new.items() if old[column] != value}
            changes.append(update(table_name, old, changed))
    return changes


def less(change: Lcr, chance: random.Random) -> Lcr:
    """A change that tells less of its old row, and may tell of what it left as it was; or the row as it stands then."""
    now = {**(change.before or {}), **(change.after or {})}
    if change.op != "delete" and now["id"] == (change.before or now)["id"] and chance.random() < 0.1:
        return Lcr("snapshot", change.table, None, now)
    if change.before is None:
        return change
    told = {name: value for name, value in change.before.items() if name == "id" or chance.random() < 0.3}
    after = change.after
    if after is not None and chance.random() < 0.5:
        after = {name: value for name, value in now.items() if name not in told or told[name] != value}
    return Lcr(change.op, change.table, told, after)
