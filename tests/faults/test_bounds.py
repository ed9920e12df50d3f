"""What a run keeps at the source and at the target does not grow with what it has applied."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.scene import SETTINGS, Scene
from tests.program import await_true

LOG = "penstock_faults"

ROUNDS = [
    # Vacuumed often, it shows in seconds what takes minutes with the settings that `setup` gives it.
    pytest.param(30_000, 1_000, id="vacuumed often"),
    pytest.param(1_000_000, None, id="as set up"),
]

_INDEX_ENTRY_BYTES = 40


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    settings = {**SETTINGS, "autovacuum_naptime": "1s"}
    with EmbeddedPostgres(settings=settings) as source, EmbeddedPostgres(settings=settings) as target:
        yield source, target


@pytest.mark.soak
@pytest.mark.parametrize(("changes", "vacuum_threshold"), ROUNDS)
def test_log_and_ledger_stay_small_under_steady_load(
    servers: tuple[EmbeddedPostgres, EmbeddedPostgres], tmp_path: Path, changes: int, vacuum_threshold: int | None
) -> None:
    with (
        Scene(tmp_path, *servers, name="bounds", chance=random.Random()) as scene,
        psycopg.connect(scene.source_url, autocommit=True) as source,
        psycopg.connect(scene.target_url, autocommit=True) as target,
    ):
        if vacuum_threshold is not None:
            source.execute(f"ALTER TABLE {LOG}.log SET (autovacuum_vacuum_threshold = {vacuum_threshold})")
        row_bytes = 0.0

        def is_enough() -> bool:
            nonlocal row_bytes
            row_bytes = max(row_bytes, one(source, f"SELECT coalesce(avg(pg_column_size(l)), 0) FROM {LOG}.log l"))
            return one(target, "SELECT sum(changes) FROM penstock.lane") >= changes

        scene.start()
        scene.load(rate=400)
        await_true(is_enough, 3600, lambda: scene.run.said)
        scene.settle()
        # What came last may be freed only with what comes next.
        scene.load(rate=20)
        scene.await_work(1)
        scene.settle()

        assert row_bytes > 0
        assert one(target, "SELECT count(*) FROM penstock.applied") == 0
        assert one(target, "SELECT pg_total_relation_size('penstock.applied')") < 1_000_000
        assert one(target, "SELECT pg_total_relation_size('penstock.lane')") < 1_000_000
        assert one(source, f"SELECT count(*) FROM {LOG}.log") < changes / 10
        assert one(source, f"SELECT count(*) FROM {LOG}.tick") < 10
        kept = one(source, f"SELECT pg_total_relation_size('{LOG}.log')")
        assert kept < changes * (row_bytes + _INDEX_ENTRY_BYTES) / 2
        scene.stop()


def one(connection: psycopg.Connection, query: str) -> float:
    row = connection.execute(query).fetchone()
    assert row is not None
    return float(row[0])
