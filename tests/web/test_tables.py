"""The list of tables: what runs have applied to each, or published, and which columns that takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.apply.batch import AppliedBatch
from penstock.apply.detail import Detail, QueuedCount, TableDetail
from penstock.apply.lane import LaneResult
from penstock.apply.progress import Progress
from penstock.change import Change, Op, TableName
from penstock.metrics import RunMetrics
from penstock.position import Scn
from penstock.web.render import TableRow, op_columns, table_rows

A, B = TableName("public", "a"), TableName("public", "b")


def rows(*, run: RunMetrics | None = None, **seen: Any) -> dict[str, TableRow]:
    observation = SimpleNamespace(**{"status": None, "detail": None, "queued": (), **seen})
    watcher: Any = SimpleNamespace(run=run, changed_at={})
    found: Any = SimpleNamespace(observation=observation)
    return {row.table: row for row in table_rows(watcher, found)}


def test_a_table_shows_what_all_runs_have_applied() -> None:
    detail = Detail([], [TableDetail(A, Scn(1), True, 0, 0, written=99, changes={"insert": 3, "delete": 1})], [])

    row = rows(detail=detail)["public.a"]

    assert (row.copied, row.changes) == ("copied", {"insert": 3, "delete": 1})
    assert [(column.title, column.of(row)) for column in op_columns([row])] == [
        ("Inserts", 3),
        ("Updates", 0),
        ("Deletes", 1),
    ]


def test_other_operations_have_a_column_where_there_were_any() -> None:
    one, other = TableRow("a", changes={"insert": 1}), TableRow("b", changes={"truncate": 2, "message": 1})

    columns = op_columns([one, other])

    assert columns[-1].title == "Others"
    assert [[column.of(row) for column in columns] for row in (one, other)] == [[1, 0, 0, 0], [0, 0, 0, 3]]


def test_a_pipeline_that_publishes_shows_what_the_run_beside_the_page_has_published() -> None:
    run = RunMetrics("shop")
    result = LaneResult()
    result.tables.add_changes([Change(1, Op.INSERT, A, 1, None, {"id": "1"})] * 2)
    progress = Progress(Scn(0))
    progress.add([result])
    progress.last_batch = AppliedBatch(Scn(4), 1, 2, 1, {}, [result])
    run.progressed(progress)
    queued = [QueuedCount(B, "1722", "failed", 2), QueuedCount(B, "12899", "failed", 1), QueuedCount(None, "", "x", 1)]

    found = rows(run=run, queued=queued)

    assert {name: (row.copied, row.changes, row.errors) for name, row in found.items()} == {
        "public.a": ("", {"insert": 2}, 0),
        "public.b": ("", {}, 3),
    }
    assert set(rows(queued=queued)) == {"public.b"}
