"""Images that tell a part of their rows give what whole images give, in every way of applying them.

The histories are those of `test_any_plan`; what a change tells of its row is cut down at random on its way to apply, to
the key and nothing else in many cases, as the log of a source does it that holds no more. Some changes are told as rows
of a snapshot instead: the row as it stands then.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import change as c
from penstock.change import Op
from penstock.demo.servers import EmbeddedPostgres
from penstock.position import Scn
from penstock.sources.trigger_queue.queue import QueueReader
from penstock.stream import Slice
from penstock.values import decode_image, encode_image
from tests.examples import examples
from tests.lab import Lab
from tests.properties.test_any_plan import Farm, divergences, transactions


class CuttingReader:
    """A reader whose changes tell less of their rows: which ones, and how much less, a seed decides."""

    def __init__(self, reader: QueueReader, seed: int, begin: Scn, *, with_snapshots: bool) -> None:
        self._reader = reader
        self._seed = seed
        self._begin = begin
        self._with_snapshots = with_snapshots

    def open(self) -> None:
        self._reader.open()

    @property
    def leaves_out(self) -> bool:
        return self._reader.leaves_out

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        for batch in self._reader.read(part, with_key=with_key):
            yield pa.RecordBatch.from_pylist([self._cut(row) for row in batch.to_pylist()], schema=batch.schema)

    def _cut(self, row: dict[str, Any]) -> dict[str, Any]:
        before, after = (decode_image(row[name]) if row[name] is not None else None for name in (c.BEFORE, c.AFTER))
        key = ["id"] if "id" in (before or after or ()) else None
        if key is None:
            # A table without a key, or a change of no row.
            return row
        # The same for each way of applying, however often it reads, and whenever the history is run again.
        chance = random.Random(f"{self._seed} {row[c.COMMIT_SCN] - self._begin} {row[c.CHANGE_SEQ]}")
        if before is None:
            if self._with_snapshots and chance.random() < 0.2:
                return row | {c.OP: Op.SNAPSHOT.value}
            # What is left out is filled in by the target, which has no other default than NULL.
            told = {name: v for name, v in after.items() if v is not None or chance.random() < 0.5}
            return row | {c.AFTER: encode_image(told)}
        if after is not None:
            now = before | after
            if self._with_snapshots and now["id"] == before["id"] and chance.random() < 0.2:
                return row | {c.OP: Op.SNAPSHOT.value, c.BEFORE: None, c.AFTER: encode_image(now)}
        share = chance.choice([0, 0, 0.5, 1])
        told = {name: value for name, value in before.items() if name in key or chance.random() < share}
        if after is not None and chance.random() < 0.5:
            # Nobody knows what has changed: all is told that is not known to be as it was.
            after = {name: value for name, value in now.items() if name not in told or told[name] != value}
        return row | {c.BEFORE: encode_image(told), c.AFTER: None if after is None else encode_image(after)}


class PartialLab(Lab):
    """A lab whose changes are cut; which ones is set for each run."""

    seed = 0
    begin = Scn(0)
    with_snapshots = False

    def reader(self) -> CuttingReader:  # type: ignore[override]
        return CuttingReader(super().reader(), self.seed, self.begin, with_snapshots=self.with_snapshots)


@pytest.fixture(scope="module")
def farm(source_server: EmbeddedPostgres, target_server: EmbeddedPostgres) -> Iterator[Farm]:
    made = Farm(source_server, target_server, PartialLab, name="partial")
    yield made
    made.close()


@pytest.mark.rule("A-224", "A-225", "A-226")
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(work=transactions, divergence=divergences, seed=st.integers(0, 99), with_snapshots=st.booleans())
def test_every_way_gives_what_whole_images_give(
    farm: Farm, work: list[Any], divergence: list[Any], seed: int, with_snapshots: bool
) -> None:
    begin = farm.reset(divergence)
    for lab in farm.labs:
        assert isinstance(lab, PartialLab)
        lab.seed, lab.begin, lab.with_snapshots = seed, begin, with_snapshots
    farm.work(work)

    farm.assert_equal_outcomes(seed, is_divergent=bool(divergence))
