"""Readers of ITEMS beside busy writers and each other: nothing is lost, doubled or out of order."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Iterator, Mapping

import psycopg
import pytest

from penstock import change as c
from tests.lab import Lab
from tests.stories.test_documented import col, documented, items

HOT = "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, 0 FROM generate_series(1, 12) i"

GROUPS = """
SELECT array_agg(REPL_KEY ORDER BY REPL_KEY), array_agg(OLDCONTENT ORDER BY REPL_KEY),
  array_agg(CONTENT ORDER BY REPL_KEY)
FROM REPL_ITEMS GROUP BY TRANS_KEY ORDER BY max(REPL_KEY)"""


def values(image: str) -> Mapping[str, int]:
    return {name: int(value) for name, value in re.findall(r'<col name="(\w+)">(\d+)</col>', image)}


def write(url: str, seed: int, transactions: int) -> None:
    """Change one to four hot rows a transaction, in an order that cannot deadlock; some are rolled back."""
    chance = random.Random(seed)
    with psycopg.connect(url) as connection:
        for _ in range(transactions):
            for row in sorted(chance.sample(range(1, 13), chance.randint(1, 4))):
                connection.execute("UPDATE t SET v = v + 1 WHERE id = %s", [row])
            if chance.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()


def polls(
    connection: psycopg.Connection, writers: list[threading.Thread]
) -> Iterator[tuple[list[int], list[str], list[str]]]:
    """What a reader finds, transaction by transaction, until all writers are done and nothing is left."""
    while True:
        is_last = not any(writer.is_alive() for writer in writers)
        found = connection.execute(GROUPS).fetchall()
        yield from found
        if is_last and not found:
            return


@pytest.mark.parametrize("seed", range(2))
def test_by_the_last_key_of_each_transaction_nothing_is_lost_doubled_or_out_of_order(lab: Lab, seed: int) -> None:
    """Takes seconds: writers have to meet each other on the same rows, and the reader has to fall behind them."""
    documented(lab, HOT)
    writers = [
        threading.Thread(target=write, args=(lab.source_url, 100 * seed + number, 60), daemon=True)
        for number in range(4)
    ]
    copy = dict.fromkeys(range(1, 13), 0)
    seen: set[int] = set()
    for writer in writers:
        writer.start()

    with psycopg.connect(lab.source_url, autocommit=True) as reader:
        for keys, before, after in polls(reader, writers):
            for key, old, new in zip(keys, before, after, strict=True):
                assert key not in seen
                assert values(old)["v"] == copy[values(old)["id"]]
                copy[values(new)["id"]] = values(new)["v"]
                seen.add(key)
            deleted = reader.execute("DELETE FROM REPL_ITEMS WHERE REPL_KEY = ANY (%s)", [keys]).rowcount
            assert deleted == len(keys)

    assert copy == dict(lab.source.execute("SELECT id, v FROM t").fetchall())
    assert lab.source.execute(f"SELECT count(*) FROM {lab.set_name}.log").fetchone() == (0,)


def test_a_run_and_a_reader_each_get_every_change(lab: Lab) -> None:
    documented(lab, HOT)
    lab.start()
    assert lab.state is not None
    own, position = lab.state.history.consumer.id, lab.log.tick()
    writers = [threading.Thread(target=write, args=(lab.source_url, number, 40), daemon=True) for number in range(2)]
    read, applied = 0, set[tuple[int, int]]()
    for writer in writers:
        writer.start()

    with psycopg.connect(lab.source_url, autocommit=True) as reader:
        for keys, _, _ in polls(reader, writers):
            read += reader.execute("DELETE FROM REPL_ITEMS WHERE REPL_KEY = ANY (%s)", [keys]).rowcount
            if read % 3 == 0:
                end = lab.log.tick()
                applied |= {(change[c.COMMIT_SCN], change[c.CHANGE_SEQ]) for change in lab.changes(after=position)}
                lab.log.free(end, own)
                position = end
    applied |= {(change[c.COMMIT_SCN], change[c.CHANGE_SEQ]) for change in lab.changes(after=position)}

    total = lab.source.execute("SELECT sum(v) FROM t").fetchone()
    assert total is not None
    assert read == total[0]
    assert len(applied) == total[0]


def test_a_delete_by_trans_key_reads_that_transaction_alone(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("DO $$ BEGIN FOR i IN 1..3000 LOOP INSERT INTO t VALUES (i); COMMIT; END LOOP; END $$")
    lab.source.execute(f"ANALYZE {lab.set_name}.log")
    keys = [key for (key,) in items(lab.source, "trans_key")]

    plan = lab.source.execute(f"EXPLAIN DELETE FROM REPL_ITEMS WHERE TRANS_KEY = '{keys[7]}'").fetchall()
    deleted = lab.source.execute("DELETE FROM REPL_ITEMS WHERE TRANS_KEY = %s", [keys[7]]).rowcount

    assert any("log_trans_key" in line for (line,) in plan)
    assert deleted == 1
    assert len(items(lab.source, "repl_key")) == 2999


def test_readers_pass_over_what_is_kept_for_a_run_that_is_away(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    lab.start()
    lab.source.execute("INSERT INTO t SELECT generate_series(1, 100)")
    cut = lab.log.tick()

    lab.source.execute("DELETE FROM REPL_ITEMS")
    lab.source.execute("INSERT INTO t VALUES (101)")

    assert [(one.consumer.name, one.position) for one in lab.log.consumers()] == [("lab", 0), ("repl_items", cut)]
    assert lab.source.execute(f"SELECT count(*) FROM {lab.set_name}.acknowledged").fetchone() == (0,)
    assert items(lab.source, "content") == [(col("id", "101"),)]
    assert len(list(lab.changes())) == 101


def test_two_readers_that_delete_the_same_rows_count_each_once(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    for number in range(50):
        lab.source.execute("INSERT INTO t VALUES (%s)", [number])
    keys = [key for (key,) in items(lab.source, "repl_key")]
    deleted = itertools.count()

    def delete(order: list[int]) -> None:
        with psycopg.connect(lab.source_url, autocommit=True) as reader:
            for key in order:
                for _ in range(reader.execute("DELETE FROM REPL_ITEMS WHERE REPL_KEY = %s", [key]).rowcount):
                    next(deleted)

    readers = [threading.Thread(target=delete, args=(keys,)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()

    assert next(deleted) == 50
    assert items(lab.source, "repl_key") == []


def test_a_reader_with_an_old_snapshot_acknowledges_and_the_next_one_frees(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO t VALUES (1)")
    count = f"SELECT count(*) FROM {lab.set_name}.log"

    with psycopg.connect(lab.source_url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert reader.execute("DELETE FROM REPL_ITEMS").rowcount == 1
        reader.commit()
    kept = lab.source.execute(count).fetchone()
    lab.source.execute("DELETE FROM REPL_ITEMS")

    assert items(lab.source, "repl_key") == []
    assert kept == (1,)
    assert lab.source.execute(count).fetchone() == (0,)


def test_a_reader_that_keeps_its_transaction_open_is_in_nobodys_way(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    lab.start()
    assert lab.state is not None
    lab.source.execute("INSERT INTO t VALUES (1)")

    with psycopg.connect(lab.source_url) as reader:
        reader.execute("DELETE FROM REPL_ITEMS")
        lab.source.execute("SET lock_timeout = '5s'")
        lab.source.execute("INSERT INTO t VALUES (2)")
        end = lab.log.tick()
        assert len(list(lab.changes())) == 2
        lab.log.free(end, lab.state.history.consumer.id)
        assert items(lab.source, "content") == [(col("id", "1"),), (col("id", "2"),)]
        reader.commit()

    assert items(lab.source, "content") == [(col("id", "2"),)]
    assert len(lab.log.consumers()) == 2


def test_large_values_come_whole(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY, v text, b bytea)")
    lab.source.execute("INSERT INTO t VALUES (1, repeat('äb<', 1000000), decode(repeat('0102', 1000000), 'hex'))")
    lab.source.execute("UPDATE t SET id = 2")

    found = items(lab.source, "md5(content)", "length(content)", "oldcontent IS NULL")

    assert found[0][1] == found[1][1] > 5_000_000
    assert [is_null for *_, is_null in found] == [True, False]
