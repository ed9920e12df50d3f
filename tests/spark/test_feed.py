"""What a feed asks of the two databases from batch to batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.apply.lane import LaneResult
from penstock.change import TableName
from penstock.config.apply import ApplyConfig
from penstock.logical import Kind, LogicalType
from penstock.pipeline import feed as feed_module
from penstock.pipeline.apply_run import ApplyRun
from penstock.pipeline.feed import SparkFeed
from penstock.pipeline.left_out import LeftOut
from penstock.position import Scn
from penstock.schema import Column, TableSchema
from penstock.stream import TableVersion

TABLES = [TableName("public", f"t{n}") for n in range(3)]


class Log:
    def count_tables(self) -> int:
        return len(TABLES)

    def tables(self) -> list[TableVersion]:
        return [TableVersion(n, TableSchema(name, ()), {}, name) for n, name in enumerate(TABLES)]

    def open(self) -> None: ...

    def close(self) -> None: ...


class Jobs:
    results: list[LaneResult]
    shared: int = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def warm_up(self) -> None: ...

    def share(self, *_: object) -> None:
        Jobs.shared += 1

    def run(self, part: object, *, lanes: int) -> list[LaneResult]:
        return Jobs.results


class Run(ApplyRun):
    """A run of a pipeline that means every table, and whose target lacks nothing."""

    def __init__(
        self,
        log: Any,
        ledger: Any,
        describe: Callable[[Iterable[TableName]], Mapping[TableName, TableSchema]],
        follow_source: Callable[[], None] = lambda: None,
    ) -> None:
        self.log, self.ledger, self.left_out, self.until = log, ledger, LeftOut(print), None
        self.follow = follow_source
        apply = ApplyConfig(connection="copy")
        source, target = SimpleNamespace(access=ledger), SimpleNamespace(access=ledger, describe=describe)
        config = SimpleNamespace(capture=SimpleNamespace(name="shop"))
        self.ends: Any = SimpleNamespace(apply=apply, source=source, target=target, config=config)

    def open_source(self) -> Any:
        return self.log

    def follow_source(self) -> None:
        self.follow()

    def follow_parts(self) -> bool:
        return False

    def is_meant(self, table: TableName) -> bool:
        return True

    def check_copies(self, position: Scn) -> None: ...

    def tell_lacking(self, followed: object, at_target: object) -> bool:
        return False


def test_a_failed_transaction_has_its_own_tables_described_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[TableName]] = []
    followed: list[None] = []
    monkeypatch.setattr(feed_module, "BatchJobs", Jobs)

    def describe(names: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        asked.append(set(names))
        return {name: TableSchema(name, ()) for name in asked[-1]}

    any_: Any = SimpleNamespace(
        instantiated=lambda: dict.fromkeys(TABLES, Scn(0)),
        save_dictionary=lambda _: None,
        reader=lambda *_, **__: None,
        name="p",
        epoch=1,
        has_ddl=False,
    )
    log: Any = Log()
    fed = SparkFeed(any_, Run(log, any_, describe, follow_source=lambda: followed.append(None)))
    fed.start(any_, TABLES)
    assert asked == [set(TABLES)]

    Jobs.results = [LaneResult.from_json(LaneResult(errors=1, failed_tables={TABLES[1]}).to_json())]
    fed.apply(any_, lanes=1)
    Jobs.results = [LaneResult()]
    fed.apply(any_, lanes=1)
    fed.apply(any_, lanes=1)

    assert asked == [set(TABLES), {TABLES[1]}]
    assert len(followed) == 1
    assert Jobs.shared == 1
    fed.close()


def test_a_version_that_comes_while_a_run_is_at_work_is_told_as_far_as_nobody_follows_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock")
    monkeypatch.setattr(feed_module, "BatchJobs", Jobs)

    class Growing(Log):
        later: tuple[TableVersion, ...] = ()

        def count_tables(self) -> int:
            return super().count_tables() + len(self.later)

        def tables(self) -> list[TableVersion]:
            return [*super().tables(), *self.later]

    any_: Any = SimpleNamespace(
        instantiated=lambda: dict.fromkeys(TABLES, Scn(0)),
        save_dictionary=lambda _: None,
        reader=lambda *_, **__: None,
        name="p",
        epoch=1,
        has_ddl=False,
    )
    log: Any = Growing()
    fed = SparkFeed(any_, Run(log, any_, lambda names: {name: TableSchema(name, ()) for name in names}))
    fed.start(any_, TABLES)
    assert not caplog.records

    column = Column.of("mail", LogicalType(Kind.STRING), is_nullable=True)
    log.later = (TableVersion(0, TableSchema(TABLES[0], (column,), version=2), {}, TABLES[0]),)
    Jobs.results = [LaneResult()]
    fed.apply(any_, lanes=1)
    fed.apply(any_, lanes=1)
    fed.close()

    (told,) = caplog.records
    assert told.getMessage() == "public.t0: column mail added at the source; the target does not follow this"
    assert told.__dict__["event"] == "ddl.left_out"
