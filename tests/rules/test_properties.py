"""Rules on a stream of changes leave the same rows as rules on the rows that the changes leave."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import change as c
from penstock.change import TableName
from penstock.rules.stream import StreamRules
from penstock.rules.table_rule import TableRule
from tests.hand_made import Lcr, T, as_batch, delete, insert, truncate, update
from tests.rules.made import TYPES, as_seen, rule_of, schema

TABLES = [schema(TYPES, TableName("public", name)) for name in ("one", "two", "three")]

STEP = """
import pyarrow.compute as pc

def mask(rows):
    at = rows.schema.get_field_index("region")
    return rows.set_column(at, "region", pc.replace_substring(rows["region"], "E", "*"))
"""

settings_ = st.fixed_dictionaries(
    {},
    optional={
        "rows": st.sampled_from(
            ["region = 'EU'", "net > 2", "tax IS NULL OR name < 'b'", "id % 2 = 0", "false", "ssn IS NOT NULL"]
        ),
        "rename": st.sampled_from([{"name": "full_name"}, {"net": "tax", "tax": "net"}, {"id": "no", "net": "a,b"}]),
        "drop": st.sampled_from([["ssn"], ["ssn", "region"]]),
        "add": st.sampled_from(
            [
                {"total": "net + tax"},
                {"where_": "coalesce(region, '?')", "one": "1"},
                {"half": "CAST(net AS DOUBLE) / 2"},
            ]
        ),
        "step": st.just("step_of_properties:mask"),
    },
)
rows = st.fixed_dictionaries(
    {
        "name": st.none() | st.sampled_from(["a", "b", '"', "\\", '","id":"7', "é\n"]),
        "ssn": st.none() | st.just("9"),
        "net": st.none() | st.sampled_from(["1.00", "2.00", "3.50"]),
        "tax": st.none() | st.sampled_from(["0.19", "0.00"]),
        "region": st.none() | st.sampled_from(["EU", "US"]),
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steps")
    (folder / "step_of_properties.py").write_text(STEP)
    return folder


class World:
    """Tables at the source, and the changes that made them."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, dict[str, Any]]] = {table.name.name: {} for table in TABLES}
        self.changes: list[Lcr] = []

    def do(self, drawn: random.Random, values: Mapping[str, Any]) -> None:
        """Insert, update (also the key), delete or truncate."""
        table = drawn.choice(list(self.rows))
        held = self.rows[table]
        key = str(drawn.randrange(4))
        old = held.pop(key, None)
        if old is None:
            held[key] = {"id": key, **values}
            self.changes.append(insert(table, **held[key]))
        elif drawn.random() < 0.1:
            held.clear()
            self.changes.append(truncate(table))
        elif drawn.random() < 0.3:
            self.changes.append(delete(table, **old))
        else:
            free = [str(n) for n in range(4) if str(n) not in held]
            new = (
                old
                | {name: value for name, value in values.items() if drawn.random() < 0.5}
                | {"id": drawn.choice(free)}
            )
            held[new["id"]] = new
            self.changes.append(update(table, old, {n: v for n, v in new.items() if v != old[n]}))


class Replica:
    """A target that refuses every change which does not find exactly the row it expects."""

    def __init__(self, rule: TableRule) -> None:
        self.columns = set(rule.table.column_names)
        self.rows: list[dict[str, Any]] = []

    def apply(self, op: str, before: Any, after: Any) -> None:
        if op == "truncate":
            self.rows.clear()
        if before is not None:
            assert set(before) == self.columns
            self.rows.remove(before)
        if op == "insert":
            assert set(after) == self.columns
            self.rows.append(after)
        if op == "update":
            assert all(before[name] != value for name, value in after.items())
            assert after
            self.rows.append(before | after)


@settings(deadline=None, max_examples=150)
@given(
    chosen=st.lists(settings_, min_size=2, max_size=2),
    drawn=st.randoms(use_true_random=False),
    values=st.lists(rows, min_size=1, max_size=25),
    cuts=st.integers(1, 7),
)
def test_rules_on_changes_are_rules_on_rows(
    folder: Path, chosen: Sequence[dict[str, Any]], drawn: random.Random, values: Sequence[Any], cuts: int
) -> None:
    world = World()
    for row in values:
        world.do(drawn, row)
    rules = {}
    for table, given_ in zip(TABLES, chosen, strict=False):
        if "region" in given_.get("drop", ()):
            given_.pop("step", None)
        if given_:
            rules[table.name, 1] = rule_of(table, folder, **given_)
    batch = as_batch([T(n + 1, change) for n, change in enumerate(world.changes)])
    batches = [batch.slice(start, cuts) for start in range(0, batch.num_rows, cuts)]

    made = list(StreamRules(rules).apply(batches))

    order = [scn for part in made for scn in part[c.COMMIT_SCN].to_pylist()]
    assert order == sorted(order)
    for table in TABLES:
        seen = [
            change
            for part in made
            for name, change in zip(part[c.TABLE_NAME].to_pylist(), as_seen([part]), strict=True)
            if name == table.name.name
        ]
        held = list(world.rows[table.name.name].values())
        if (rule := rules.get((table.name, 1))) is None:
            assert len(seen) == sum(change.table == table.name.name for change in world.changes)
            continue
        replica = Replica(rule)
        for op, before, after in seen:
            replica.apply(op, before, after)
        columns = pa.schema([(name, pa.string()) for name in TYPES])
        expected = rule.rows(pa.RecordBatch.from_pylist(held, schema=columns)).to_pylist()
        as_sets = [sorted((sorted(row.items()) for row in found), key=repr) for found in (replica.rows, expected)]
        assert as_sets[0] == as_sets[1]
