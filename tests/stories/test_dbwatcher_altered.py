"""A receiver of DbWatcher messages begins while ALTERs lie among them: whenever that is, both sides are equal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.program import Program

PUBLISHER = """\
version: 1
name: shop
connections:
  source: {type: postgres, url: "${env:SHOP_URL}"}
capture: {source: trigger_queue, connection: source, tables: ["public.*"]}
publish: {to: files, format: dbwatcher, path: PATH, max_age_s: 0}
"""

RECEIVER = """\
version: 1
name: slave
connections:
  copy: {type: postgres, url: "${env:COPY_URL}"}
capture: {source: dbwatcher, path: PATH, tables: ["public.*"]}
apply: {connection: copy, ddl: POLICY}
"""

STEPS: Sequence[str] = (
    "INSERT INTO orders SELECT n, 'note ' || n, n FROM generate_series(1, 9) n",
    "ALTER TABLE orders RENAME COLUMN note TO remark",
    "UPDATE orders SET remark = 'changed' WHERE id < 4; INSERT INTO orders VALUES (10, 'ten', 10)",
    "ALTER TABLE orders ADD COLUMN vip boolean DEFAULT true; ALTER TABLE orders ALTER COLUMN amount TYPE bigint",
    "INSERT INTO orders VALUES (11, NULL, 5000000000, false); UPDATE orders SET vip = NULL WHERE id = 1",
    "ALTER TABLE orders RENAME COLUMN vip TO note; UPDATE orders SET note = false WHERE id = 2",
    "ALTER TABLE orders DROP COLUMN remark; DELETE FROM orders WHERE id = 3",
    "INSERT INTO orders VALUES (12, 12, true)",
)
"""What is done at the source: a column is renamed, and another one gets its name later."""


class Pair:
    """A database that is published as messages, and one that receives them."""

    def __init__(self, lab: Lab, tmp_path: Path, policy: str = "apply", rules: str = "") -> None:
        self._lab = lab
        for name in ("publisher", "receiver"):
            (tmp_path / name).mkdir()
        self.publisher = Program(tmp_path / "publisher", lab.source_url, lab.target_url, name="shop")
        self.receiver = Program(tmp_path / "receiver", lab.source_url, lab.target_url, name="slave")
        path = str(tmp_path / "messages")
        (tmp_path / "publisher" / "pipeline.yaml").write_text(PUBLISHER.replace("PATH", path))
        text = RECEIVER.replace("PATH", path).replace("POLICY", policy)
        (tmp_path / "receiver" / "pipeline.yaml").write_text(text + rules)
        lab.source.execute("CREATE TABLE orders (id integer PRIMARY KEY, note text, amount integer)")
        ended = self.publisher("setup")
        assert ended.code == 0, ended.err
        # The first copy, so that all that is done is among the messages.
        self.publish(())

    def publish(self, steps: Sequence[str]) -> None:
        for step in steps:
            self._lab.source.execute(step)
        ended = self.publisher("run", "--until-caught-up")
        assert ended.code == 0, ended.err

    def receive(self) -> None:
        ended = self.receiver("run", "--until-caught-up")
        assert ended.code == 0, ended.err

    def set_up(self) -> None:
        ended = self.receiver("setup")
        assert ended.code == 0, ended.err

    def hold_against(self, table: str = "orders") -> None:
        query = "SELECT to_jsonb(t) FROM {} t ORDER BY id"
        there = self._lab.target.execute(query.format(table)).fetchall()
        assert there == self._lab.source.execute(query.format("orders")).fetchall()
        assert json.loads(self.receiver("errors", "list", "--json").out) == []


@pytest.mark.parametrize(
    ("set_up", "begun"),
    [(0, 8), (2, 4), (8, 8), (4, 7)],
    ids=str,
)
def test_a_receiver_begins_with_a_table_as_its_first_message_describes_it(
    lab: Lab, tmp_path: Path, set_up: int, begun: int
) -> None:
    pair = Pair(lab, tmp_path)
    pair.publish(STEPS[:set_up])
    pair.set_up()
    pair.publish(STEPS[set_up:begun])
    pair.receive()
    pair.hold_against()

    # Whatever came before, setup asks for nothing that only earlier or later messages name.
    pair.publish(STEPS[begun:])
    pair.set_up()
    pair.receive()
    pair.set_up()
    pair.hold_against()


def test_a_table_made_by_hand_as_it_was_is_followed_by_a_first_run_that_was_killed(lab: Lab, tmp_path: Path) -> None:
    pair = Pair(lab, tmp_path)
    lab.target.execute("CREATE TABLE orders (id integer PRIMARY KEY, note text, amount integer)")
    pair.publish(STEPS[:2])
    pair.set_up()
    with pair.receiver.start("run") as run:
        run.await_line("following")
        run.kill()

    pair.publish(STEPS[2:])
    pair.receive()
    pair.set_up()

    pair.hold_against()


def test_rules_may_name_columns_that_a_table_gets_later(lab: Lab, tmp_path: Path) -> None:
    rules = "rules: {tables: {public.orders: {to: public.bills, rename: {remark: said}}}}\n"
    pair = Pair(lab, tmp_path, rules=rules)
    pair.publish(STEPS[:3])
    pair.set_up()
    pair.receive()
    pair.set_up()

    there = lab.target.execute("SELECT id, said FROM bills ORDER BY id").fetchall()
    assert there == lab.source.execute("SELECT id, remark FROM orders ORDER BY id").fetchall()
    assert json.loads(pair.receiver("errors", "list", "--json").out) == []


def test_a_receiver_that_alters_nothing_has_the_columns_of_all_messages(lab: Lab, tmp_path: Path) -> None:
    pair = Pair(lab, tmp_path, policy="ignore")
    pair.publish(STEPS[:5])
    pair.set_up()
    planned = pair.receiver("plan").out

    assert "messages to come alter table public.orders, which is left to you" in " ".join(planned.split())
    columns = lab.target.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attnum > 0 ORDER BY 1"
    ).fetchall()
    assert [one for (one,) in columns] == ["amount", "id", "note", "remark", "vip"]


def test_a_run_that_stops_at_ddl_begins_with_the_table_as_it_was(lab: Lab, tmp_path: Path) -> None:
    pair = Pair(lab, tmp_path, policy="stop")
    pair.publish(STEPS[:3])
    pair.set_up()
    stopped = pair.receiver("run", "--until-caught-up")
    assert stopped.code == 3
    assert "`ddl: stop` ends the run here" in stopped.err
    assert lab.target.execute("SELECT count(note) FROM orders").fetchone() == (9,)

    lab.target.execute("ALTER TABLE orders RENAME COLUMN note TO remark")
    file = tmp_path / "receiver" / "pipeline.yaml"
    file.write_text(file.read_text().replace("ddl: stop", "ddl: ignore"))
    pair.receive()

    pair.hold_against()
