"""The net effect of a group is what its changes come to one by one, and nothing in between goes unnoticed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apply.apply_errors import SpeculationError
from penstock.apply.group import COLUMNS
from penstock.apply.net import NetChange, net_change
from penstock.apply.netting import Netting
from penstock.apply.target import TargetTable
from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.schema import Column, Exclusion, ForeignKey, TableSchema, Unique
from tests.hand_made import Lcr, T, as_batch, delete, insert, update

Row = Mapping[str, str | None]

NAME = TableName("public", "t")
ID = Column("id", "integer", "integer", is_nullable=False, is_integer=True)
V = Column("v", "text", "text")
W = Column("w", "text", "text")
KEY = Unique("pk", ("id",), ("id",))
ON_V = Unique("u", ("v",), ("v",))
PARENT = ForeignKey("fk", NAME, ("v",), TableName("public", "p"), ("id",))
PLAIN = TableSchema(NAME, (ID, V, W), KEY)


def netting(target: TableSchema = PLAIN, source: TableSchema | None = None) -> Netting:
    return Netting(source or target, TargetTable(target))


def net(*changes: Lcr, by: Netting | None = None) -> NetChange:
    rows = as_batch([T(n, change) for n, change in enumerate(changes)])
    return net_change(pa.Table.from_batches([rows]).select(COLUMNS), by or netting())


def parts(found: NetChange) -> dict[str, list[dict[str, Any]]]:
    """The parts of a net change that hold rows."""
    named = {
        "deletes": found.deletes,
        "old": [part.old for part in found.updates],
        "new": [part.new for part in found.updates],
        "inserts": found.inserts,
        "puts": found.puts,
        "probes": [found.probes],
    }
    rows = {name: [row for part in parts for row in part.to_pylist()] for name, parts in named.items()}
    return {name: found for name, found in rows.items() if found}


def row(id_: int, v: str | None = "a", w: str | None = None) -> dict[str, str | None]:
    return {"id": str(id_), "v": v, "w": w}


@pytest.mark.rule("A-131")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param([], {}, id="nothing"),
        pytest.param([insert("t", **row(1))], {"inserts": [row(1)]}, id="insert"),
        pytest.param([delete("t", **row(1))], {"deletes": [row(1)]}, id="delete"),
        pytest.param([update("t", row(1), {"v": "b"})], {"old": [row(1)], "new": [{"v": "b"}]}, id="update"),
        pytest.param([update("t", row(1), {"v": None})], {"old": [row(1)], "new": [{"v": None}]}, id="update to null"),
        pytest.param(
            [update("t", row(1), {"v": "b"}), update("t", row(1, "b"), {"w": "c"})],
            {"old": [row(1)], "new": [{"v": "b", "w": "c"}]},
            id="two updates of one row",
        ),
        pytest.param(
            [update("t", row(1), {"v": "b"}), update("t", row(2), {"w": "c"})],
            {"old": [row(1), row(2)], "new": [{"v": "b", "w": None}, {"v": "a", "w": "c"}]},
            id="updates of other columns of other rows",
        ),
        pytest.param(
            [update("t", row(1), {"v": "b"}), update("t", row(1, "b"), {"v": "a"})],
            {"old": [row(1)], "new": [{}]},
            id="there and back must still find the row",
        ),
        pytest.param(
            [insert("t", **row(1)), update("t", row(1), {"v": "b"})], {"inserts": [row(1, "b")]}, id="insert, update"
        ),
        pytest.param(
            [update("t", row(1), {"v": "b"}), delete("t", **row(1, "b"))], {"deletes": [row(1)]}, id="update, delete"
        ),
        pytest.param(
            [delete("t", **row(1)), insert("t", **row(1, "b"))],
            {"old": [row(1)], "new": [{"v": "b"}]},
            id="delete, insert",
        ),
        pytest.param(
            [insert("t", **row(1)), delete("t", **row(1))], {"probes": [row(1)]}, id="insert, delete leaves a probe"
        ),
        pytest.param([update("t", row(1), {"id": "2"})], {"deletes": [row(1)], "inserts": [row(2)]}, id="a key change"),
        pytest.param(
            [
                update("t", row(1, "a"), {"id": "3"}),
                update("t", row(2, "b"), {"id": "1"}),
                update("t", row(3, "a"), {"id": "2"}),
            ],
            {
                "old": [row(1, "a"), row(2, "b")],
                "new": [{"v": "b"}, {"v": "a"}],
                "probes": [row(3, "a")],
            },
            id="two rows change places by a third key",
        ),
        pytest.param([update("t", row(1), {})], {}, id="an update of nothing"),
    ],
)
def test_the_net_change(changes: list[Lcr], expected: dict[str, list[Row]]) -> None:
    found = parts(net(*changes))

    assert {name: sorted(map(repr, rows)) for name, rows in found.items()} == {
        name: sorted(map(repr, rows)) for name, rows in expected.items()
    }


def key(id_: int) -> dict[str, str | None]:
    return {"id": str(id_)}


def snapshot(**values: str | None) -> Lcr:
    return Lcr("snapshot", "t", None, values)


@pytest.mark.rule("A-225")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            [update("t", key(1), {"v": "b", "w": None})],
            {"old": [key(1)], "new": [{"v": "b", "w": None}]},
            id="an update by key sets what it names",
        ),
        pytest.param(
            [update("t", key(1), {"v": "b"}), update("t", key(2), {"w": "c"})],
            {"old": [key(1), key(2)], "new": [{"v": "b"}, {"w": "c"}]},
            id="each row is set what is known of it",
        ),
        pytest.param(
            [update("t", {**key(1), "w": "x"}, {"v": "b"})],
            {"old": [{**key(1), "w": "x"}], "new": [{"v": "b"}]},
            id="what is known of the old row is compared",
        ),
        pytest.param(
            [insert("t", **row(1)), update("t", key(1), {"v": "b"})],
            {"inserts": [row(1, "b")]},
            id="insert, update by key",
        ),
        pytest.param(
            [update("t", key(1), {"v": "b"}), delete("t", **key(1))],
            {"deletes": [key(1)]},
            id="update, delete by key",
        ),
        pytest.param(
            [update("t", row(1), {"v": "b"}), delete("t", **key(1))],
            {"deletes": [row(1)]},
            id="a delete by key compares what the update before it knew",
        ),
        pytest.param(
            [update("t", key(1), {"v": "b"}), delete("t", **row(1, "b", "x"))],
            {"deletes": [{**key(1), "w": "x"}]},
            id="a delete knows what the update before it did not",
        ),
        pytest.param(
            [delete("t", **key(1)), insert("t", **row(1, "b"))],
            {"old": [key(1)], "new": [{"v": "b", "w": None}]},
            id="delete by key, insert",
        ),
        pytest.param([insert("t", **row(1)), delete("t", **key(1))], {"probes": [row(1)]}, id="insert, delete by key"),
        pytest.param(
            [update("t", key(1), row(2, "b"))],
            {"deletes": [key(1)], "inserts": [row(2, "b")]},
            id="a key change that tells the whole new row",
        ),
        pytest.param([insert("t", **key(1))], {"inserts": [key(1)]}, id="the target fills in what an insert lacks"),
        pytest.param(
            [insert("t", **key(1)), update("t", key(1), {"v": "b"})],
            {"inserts": [{**key(1), "v": "b"}]},
            id="an update sets what the insert lacked",
        ),
        pytest.param([snapshot(**row(1))], {"puts": [row(1)]}, id="a row as it stands"),
        pytest.param(
            [snapshot(**row(1)), snapshot(**row(1, "b")), update("t", row(1, "b"), {"w": "x"})],
            {"puts": [row(1, "b", "x")]},
            id="a row as it stands, and what becomes of it",
        ),
        pytest.param(
            [insert("t", **row(1)), snapshot(**row(1, "b"))], {"inserts": [row(1, "b")]}, id="a row that came before"
        ),
        pytest.param(
            [update("t", key(1), {"v": "b"}), snapshot(**row(1, "c"))],
            {"old": [key(1)], "new": [{"v": "c", "w": None}]},
            id="a row that was changed before",
        ),
        pytest.param(
            [delete("t", **row(1)), snapshot(**row(1, "b"))],
            {"old": [row(1)], "new": [{"v": "b"}]},
            id="a row that was gone before",
        ),
    ],
)
def test_the_net_change_of_partial_images(changes: list[Lcr], expected: dict[str, list[Row]]) -> None:
    found = parts(net(*changes))

    assert {name: sorted(map(repr, rows)) for name, rows in found.items()} == {
        name: sorted(map(repr, rows)) for name, rows in expected.items()
    }


@pytest.mark.rule("A-216")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([delete("t", v="a")], "does not tell its key"),
        ([update("t", key(1), {"v": "b"}), delete("t", **{**key(1), "v": "c"})], "a before image is not the after"),
        ([update("t", row(1), {"v": "b"}), update("t", key(1), {}), delete("t", **row(1))], "a before image is not"),
        ([update("t", key(1), {"id": "2", "v": "b"})], "not known whole"),
        ([insert("t", **key(1)), delete("t", **row(1, None))], "the target has filled in"),
        ([delete("t", **key(1)), insert("t", **key(1))], "the target has filled in"),
        ([insert("t", **key(1)), insert("t", **key(1))], "a row appears or vanishes"),
        ([snapshot(**row(1)), delete("t", **row(1))], "a row of a snapshot is gone again"),
        ([delete("t", **key(1)), update("t", key(1), {"v": "b"})], "a row appears or vanishes"),
        (
            [update("t", key(n), {f"c{at}": "x" for at in range(6) if n >> at & 1}) for n in range(1, 40)],
            "too many different columns",
        ),
        ([update("t", row(1), {"v": "b"}), delete("t", **row(1, "c"))], "a before image is not the after image"),
        ([update("t", row(1), {"v": "b"}), update("t", row(1), {"v": "c"})], "a before image is not the after image"),
        ([update("t", row(1, None), {"w": "b"}), delete("t", **row(1, "", "b"))], "a before image is not the after"),
        ([insert("t", **row(1)), insert("t", **row(1))], "a row appears or vanishes"),
        ([delete("t", **row(1)), delete("t", **row(1))], "a row appears or vanishes"),
        ([delete("t", **row(1)), update("t", row(1), {"v": "b"})], "a row appears or vanishes"),
        ([insert("t", **row(2)), update("t", row(1), {"id": "2"})], "a row appears or vanishes"),
        ([update("t", row(1), {"id": "2"}), delete("t", **row(1))], "a row appears or vanishes"),
        ([update("t", row(1), {"v": "a"})], "a column was set to the value it had"),
        ([update("t", row(1), {"w": None})], "a column was set to the value it had"),
    ],
)
def test_what_only_the_row_path_may_decide(changes: list[Lcr], why: str) -> None:
    wide = replace(PLAIN, columns=(*PLAIN.columns, *(Column(f"c{n}", "text", "text") for n in range(6))))
    by = netting(wide if "too many" in why else PLAIN)

    with pytest.raises(SpeculationError, match=why):
        net(*changes, by=by)


def test_an_unknown_column_is_refused_without_its_value() -> None:
    with pytest.raises(MalformedInputError) as caught:
        net(insert("t", **row(1), ghost="s3cret"))

    assert "s3cret" not in str(caught.value)


def test_without_a_declared_key_every_insert_counts() -> None:
    keyless = netting(replace(PLAIN, primary_key=None))

    assert keyless.is_insert_only
    assert parts(net(insert("t", **row(1)), insert("t", **row(1)), by=keyless)) == {"inserts": [row(1), row(1)]}


def test_equal_keys_in_other_words_are_left_to_the_row_path() -> None:
    number = Column("id", "numeric", "numeric", is_nullable=False, is_exact=False, is_decimal=True)
    by_number = netting(replace(PLAIN, columns=(number, V, W)))

    with pytest.raises(SpeculationError, match="a row appears or vanishes"):
        net(insert("t", **{**row(1), "id": "1.0"}), insert("t", **row(1)), by=by_number)


@pytest.mark.parametrize(
    ("target", "source", "is_possible"),
    [
        (PLAIN, PLAIN, True),
        (replace(PLAIN, columns=(ID, V, W, Column("x", "text", "text"))), PLAIN, True),
        (replace(PLAIN, fires_triggers=True), PLAIN, False),
        (replace(PLAIN, columns=(ID, V)), PLAIN, False),
        (PLAIN, replace(PLAIN, columns=(V, W)), False),
        (replace(PLAIN, exclusions=(Exclusion("x", ("v",), ("=",)),)), PLAIN, False),
        (*(replace(PLAIN, exclusions=(Exclusion("x", ("v",), ("=",)),)),) * 2, True),
        (replace(PLAIN, exclusions=(Exclusion("x", ("v",), ("=",), is_deferrable=True),)), PLAIN, False),
        (replace(PLAIN, primary_key=None), PLAIN, True),
        (replace(PLAIN, primary_key=None, uniques=(Unique("u", ("id", "v"), ("id", "v")),)), PLAIN, False),
        *((replace(PLAIN, columns=(ID, replace(V, name=odd), W)),) * 2 + (True,) for odd in ('q"', "q\\")),
    ],
    ids=[
        "same tables",
        "a column of the target's own",
        "a trigger fires",
        "a column is missing at the target",
        "the key is missing in the stream",
        "an exclusion constraint of the target's own",
        "an exclusion constraint on both sides",
        "a deferrable exclusion constraint",
        "no key",
        "a key that admits two rows",
        "a quote in a name",
        "a backslash in a name",
    ],
)
def test_which_tables_can_be_netted(target: TableSchema, source: TableSchema, is_possible: bool) -> None:
    assert netting(target, source).is_possible is is_possible


OWN = Column("own", "text", "text")


@pytest.mark.parametrize(("own", "can_move"), [(OWN, False), (replace(OWN, is_generated=True), True)])
def test_a_key_change_would_lose_the_targets_own_columns(own: Column, can_move: bool) -> None:
    with_own = netting(replace(PLAIN, columns=(ID, V, W, own)), PLAIN)

    if can_move:
        assert parts(net(update("t", row(1), {"id": "2"}), by=with_own)) == {"deletes": [row(1)], "inserts": [row(2)]}
    else:
        with pytest.raises(SpeculationError, match="columns of its own"):
            net(update("t", row(1), {"id": "2"}), by=with_own)
    assert parts(net(update("t", row(1), {"v": "b"}), by=with_own)) == {"old": [row(1)], "new": [{"v": "b"}]}


THERE_AND_BACK = [update("t", row(1), {"v": "b"}), update("t", row(1, "b"), {"v": "a"})]
STRICT_V = replace(V, is_nullable=False)


@pytest.mark.parametrize(
    ("target", "source", "is_probed"),
    [
        pytest.param(PLAIN, PLAIN, False, id="nothing would notice"),
        pytest.param(replace(PLAIN, uniques=(ON_V,)), PLAIN, True, id="a unique index"),
        pytest.param(replace(PLAIN, uniques=(Unique("u", (), ("v",)),)), PLAIN, True, id="an index on an expression"),
        pytest.param(replace(PLAIN, uniques=(Unique("u", ("w",), ("w",)),)), PLAIN, False, id="an index elsewhere"),
        pytest.param(replace(PLAIN, foreign_keys=(PARENT,)), PLAIN, True, id="a foreign key"),
        pytest.param(replace(PLAIN, exclusions=(Exclusion("x", ("v",), ("=",)),)), PLAIN, True, id="an exclusion"),
        pytest.param(replace(PLAIN, exclusions=(Exclusion("x", (), ()),)), PLAIN, True, id="an exclusion of anything"),
        pytest.param(replace(PLAIN, checks=("v <> 'b'",)), PLAIN, True, id="a check of the target's own"),
        pytest.param(*(replace(PLAIN, checks=("v <> 'b'",)),) * 2, False, id="a check of both"),
        pytest.param(replace(PLAIN, columns=(ID, STRICT_V, W)), PLAIN, True, id="not null"),
        pytest.param(replace(PLAIN, columns=(ID, replace(V, type="varchar(3)"), W)), PLAIN, True, id="a shorter type"),
    ],
)
def test_values_in_between_are_probed_where_the_target_might_refuse_them(
    target: TableSchema, source: TableSchema, is_probed: bool
) -> None:
    found = net(*THERE_AND_BACK, by=netting(target, source))

    assert parts(found).get("probes", []) == ([row(1, "b")] if is_probed else [])
    assert found.are_probes_absent.to_pylist() == [False] * is_probed


@dataclass
class History:
    """Rows that start somewhere and the changes they went through, in order."""

    start: dict[str, Row]
    rows: dict[str, Row] = field(default_factory=dict)
    changes: list[Lcr] = field(default_factory=list)
    seen: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = dict(self.start)

    def step(self, id_: str, kind: str, new: Row) -> None:
        old = self.rows.get(id_)
        if old is None:
            made: Row = {**new, "id": id_}
            self.changes.append(insert("t", **made))
        elif kind == "delete":
            self.changes.append(delete("t", **self.rows.pop(id_)))
            return
        else:
            wanted = new["id"] if kind == "move" and new["id"] not in self.rows else id_
            made = {**new, "id": wanted}
            changed = {name: value for name, value in made.items() if old[name] != value}
            self.changes.append(update("t", old, changed))
            del self.rows[id_]
        assert made["id"] is not None
        self.rows[made["id"]] = made
        self.seen.append(made)


keys = st.sampled_from(["1", "2", "3", "-4"])
cells = st.sampled_from(["", "a", '"', "null", '":null', None])
images = st.fixed_dictionaries({"id": keys, "v": cells, "w": cells})
starts = st.lists(images, unique_by=lambda image: image["id"], max_size=4)
steps = st.lists(st.tuples(keys, st.sampled_from(["update", "delete", "move"]), images), max_size=12)


def play(start: Sequence[Row], steps: Sequence[tuple[str, str, Row]]) -> History:
    history = History({str(image["id"]): image for image in start})
    for step in steps:
        history.step(*step)
    return history


@settings(deadline=None, max_examples=60)
@given(starts, steps)
def test_the_net_change_leaves_the_rows_that_all_the_changes_leave(
    start: list[Row], steps: list[tuple[str, str, Row]]
) -> None:
    history = play(start, steps)

    found = net(*history.changes)

    rows = dict(history.start)
    # Deletes, then updates, then inserts, each of them finding exactly what it expects.
    told = parts(found)
    for old in told.get("deletes", ()):
        assert rows.pop(old["id"]) == old
    for old, new in zip(told.get("old", ()), told.get("new", ()), strict=True):
        assert rows[old["id"]] == old
        rows[old["id"]] = {**old, **new}
    for image in told.get("inserts", ()):
        assert image["id"] not in rows
        rows[image["id"]] = image
    assert rows == history.rows


@pytest.mark.rule("A-225")
@settings(deadline=None, max_examples=200)
@given(starts, steps, st.randoms(use_true_random=False))
def test_the_net_change_of_partial_images_leaves_the_same_rows(
    start: list[Row], steps: list[tuple[str, str, Row]], chance: random.Random
) -> None:
    history = play(start, steps)

    found = parts(net(*[cut(change, chance) for change in history.changes]))

    rows = dict(history.start)
    for old in found.get("deletes", ()):
        assert old.items() <= rows.pop(old["id"]).items()
    for old, new in zip(found.get("old", ()), found.get("new", ()), strict=True):
        assert old.items() <= rows[old["id"]].items()
        rows[old["id"]] = {**rows[old["id"]], **new}
    for image in found.get("puts", ()):
        rows[image["id"]] = image
    for image in found.get("inserts", ()):
        assert image["id"] not in rows
        rows[image["id"]] = {"v": None, "w": None, **image}
    assert rows == history.rows


def cut(change: Lcr, chance: random.Random) -> Lcr:
    """Leave out, at random, old values but for the key; of an update tell all that may have changed, at times."""
    if change.before is None or change.op == "insert":
        return change
    told = {name: value for name, value in change.before.items() if name == "id" or chance.random() < 0.4}
    after = change.after
    if after is not None and ("id" in after or chance.random() < 0.5):
        now = {**change.before, **after}
        after = {name: value for name, value in now.items() if name not in told or told[name] != value}
    return Lcr(change.op, change.table, told, after)


@settings(deadline=None, max_examples=60)
@given(starts, steps)
def test_what_was_there_only_in_between_is_probed(start: list[Row], steps: list[tuple[str, str, Row]]) -> None:
    history = play(start, steps)

    unique_v = net(*history.changes, by=netting(replace(PLAIN, uniques=(ON_V,))))
    stricter = net(*history.changes, by=netting(replace(PLAIN, checks=("w <> ''",)), PLAIN))

    # Every value of the unique column that no row starts or ends with.
    quiet = {image["v"] for image in (*history.start.values(), *history.rows.values())}
    assert {image["v"] for image in history.seen} - quiet <= set(unique_v.probes["v"].to_pylist())
    # And, where the target has a check of its own, every image that no row ends with.
    kept = list(history.rows.values())
    probed = stricter.probes.to_pylist()
    assert all(image in kept or image in probed or image in history.start.values() for image in history.seen)
    for image, is_absent in zip(probed, stricter.are_probes_absent.to_pylist(), strict=True):
        assert is_absent == (image["id"] not in history.start and image["id"] not in history.rows)
