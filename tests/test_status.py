"""What a status says of lag, consistency and health, from what the ledger and the source say."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock.apply.detail import Detail, ParameterDetail, ServerDetail, TableDetail
from penstock.apply.ledger import ProcessState, ProcessStatus, RunPlace
from penstock.change import TableName
from penstock.cli import console
from penstock.cli import status as command
from penstock.history import Consumer, History
from penstock.pipeline.health import ProblemKind, problems
from penstock.pipeline.status import PipelineState, SourceState, Status, not_set_up, status_of
from penstock.position import START, Scn
from penstock.stream import NOTHING_RECORDED, Backlog

LONG_AGO = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOTHING = Backlog(0, None, 0)


def process(**more: Any) -> ProcessState:
    now = datetime.now(UTC)
    state = ProcessState(
        name="shop",
        epoch=1,
        status=ProcessStatus.ENABLED,
        status_at=now,
        error=None,
        reason=None,
        low_watermark=Scn(7),
        high_watermark=Scn(7),
        consistent_at=now,
        transactions=7,
        changes=9,
        errors=0,
        conflicts=0,
        resolved=0,
        history=History(Consumer("", "shop"), None, START, None, None, is_new=False),
    )
    return replace(state, **more)


def found(backlog: Backlog | None = NOTHING, *, state: ProcessState | None = None, **more: Any) -> Status:
    given: dict[str, Any] = {"is_running": True, "copied": [Scn(1)], "place": None}
    given |= {name: more.pop(name) for name in given.keys() & more.keys()}
    return status_of("shop", state or process(), SourceState(backlog, **more), **given)


def shown(status: Status, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    command.show(status)
    lines = capsys.readouterr().out.splitlines()
    return {line.split("  ")[0]: line.split("  ", 1)[1] for line in lines}


def test_a_recording_that_nothing_waits_in_is_no_lag_however_old_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    idle = found(replace(NOTHING, complete_until=LONG_AGO))

    assert idle.lag_s == 0
    assert idle.consistent_at == idle.recorded_until == LONG_AGO
    plain = idle.to_json()
    assert (plain["lag_s"], plain["recorded_until"]) == (0, "2026-01-01T12:00:00+00:00")
    text = shown(idle, capsys)
    assert text["consistent up to"].strip() == "2026-01-01 12:00:00 UTC, the last that is recorded"
    assert "0.0 s, nothing waits" in text["lag"]


def test_what_waits_in_a_recording_is_lag_from_its_commit_on() -> None:
    committed = datetime.now(UTC) - timedelta(minutes=6)
    waiting = found(Backlog(3, committed, 0, complete_until=committed + timedelta(minutes=1)))

    assert waiting.consistent_at == committed
    assert waiting.lag_s == pytest.approx(360, abs=5)


def test_records_that_wait_without_a_time_are_lag_since_the_process_was_last_up_to_date() -> None:
    # As of topics: their records are counted, and nobody has looked when they were made.
    last = datetime.now(UTC) - timedelta(seconds=90)
    waiting = found(Backlog(3, None, 0, complete_until=LONG_AGO), state=process(consistent_at=last))

    assert waiting.lag_s == pytest.approx(90, abs=5)
    assert waiting.consistent_at == LONG_AGO


def test_a_recording_without_anything_in_it_is_no_lag_either(capsys: pytest.CaptureFixture[str]) -> None:
    empty = found(replace(NOTHING, complete_until=NOTHING_RECORDED))

    assert (empty.consistent_at, empty.recorded_until, empty.lag_s) == (None, None, 0)
    assert "1970" not in str(shown(empty, capsys))


def test_a_source_that_is_asked_itself_is_up_to_date_now() -> None:
    idle = found(state=process(consistent_at=LONG_AGO))

    assert idle.lag_s == 0
    assert idle.recorded_until is None
    assert idle.consistent_at is not None
    assert datetime.now(UTC) - idle.consistent_at < timedelta(seconds=10)


def test_what_the_error_queue_holds_is_taken_out_of_what_is_consistent(capsys: pytest.CaptureFixture[str]) -> None:
    queued = found(state=process(errors=2, held=1))

    assert queued.consistent_but_for == queued.to_json()["consistent_but_for"] == 3
    assert shown(queued, capsys)["consistent up to"].endswith(", but for 3 transactions in the error queue")
    assert "but for" not in shown(found(), capsys)["consistent up to"]


def test_a_run_that_was_killed_is_aborted_and_one_that_ended_is_stopped() -> None:
    assert found(is_running=False).state == "aborted"
    assert found(is_running=False, state=process(status=ProcessStatus.ABORTED)).state == "aborted"
    ended = process(status=ProcessStatus.DISABLED, reason="it was told to stop")
    assert found(is_running=False, state=ended).state == "stopped"
    assert found().state == "running"


def test_of_a_source_out_of_reach_only_what_the_ledger_knows_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    lost = found(None, lost="connection refused (127.0.0.1:5432/shop)")

    assert lost.lag_s is None
    assert lost.transactions == 7
    text = shown(lost, capsys)
    assert "connection refused (127.0.0.1:5432/shop)" in text["source out of reach"]
    assert text["backlog"].strip() == text["lag"].strip() == "unknown"


def kinds(status: Status, *, max_lag_s: float = 300, max_errors: int = 0) -> list[ProblemKind]:
    return [one.kind for one in problems(status, max_lag_s=max_lag_s, max_errors=max_errors)]


def test_a_pipeline_that_runs_and_is_up_to_date_has_no_problem() -> None:
    assert kinds(found()) == []


def test_each_thing_that_is_wrong_is_a_problem_of_its_own() -> None:
    ago = datetime.now(UTC) - timedelta(minutes=10)
    late = found(Backlog(3, ago, 0), state=process(errors=2), attention=["table public.t lacks a column"])
    assert kinds(late) == [ProblemKind.LAG, ProblemKind.ERROR_QUEUE, ProblemKind.ATTENTION]
    assert kinds(late, max_lag_s=700, max_errors=2) == [ProblemKind.ATTENTION]
    assert [one.text for one in problems(late, max_lag_s=300, max_errors=0)][:2] == [
        "the lag is 10 min 0 s, more than 5 min 0 s: 3 changes at the source",
        "the error queue holds 2 transactions; `penstock errors list` says why",
    ]

    ended = process(status=ProcessStatus.DISABLED, reason="it was told to stop")
    assert kinds(found(is_running=False, state=ended)) == [ProblemKind.NOT_RUNNING]
    assert kinds(found(is_running=False, refused="it was made anew")) == [ProblemKind.ABORTED, ProblemKind.REFUSED]
    assert kinds(found(None, lost="refused")) == [ProblemKind.SOURCE_LOST]


def test_where_and_since_when_a_run_is_at_work_is_told_while_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    state, place = process(status_at=LONG_AGO), RunPlace("db1", 4711)

    running = found(state=state, place=place)
    assert shown(running, capsys)["pipeline"].strip() == (
        "shop, running since 2026-01-01 12:00:00 UTC (pid 4711 on db1)"
    )
    assert running.to_json()["started_at"] == "2026-01-01T12:00:00+00:00"
    assert (running.host, running.pid) == ("db1", 4711)
    ended = found(state=state, is_running=False)
    assert (ended.started_at, ended.host, ended.pid) == (None, None, None)


def test_on_a_terminal_no_line_of_a_status_is_wider_than_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shown_to = io.StringIO()
    terminal = Console(file=shown_to, force_terminal=True, width=80, highlight=False, soft_wrap=True, color_system=None)
    monkeypatch.setattr(console, "out", terminal)
    attention = ["public.sess is not captured: it is unlogged; a crash empties it: take it out (rules.exclude)"] * 2

    place = RunPlace("a-host-with-a-long-name.in-a-domain.example", 4_194_304)
    command.show(found(state=process(errors=2, held=1), attention=attention, place=place))
    more = Detail(
        [ServerDetail(0, 1_000_000, 9_000_000, 1, 2, 3, 4)],
        [TableDetail(TableName("public", "customer_addresses_of_last_year"), Scn(123_456), False, 1, 2)],
        [ParameterDetail("txn_lcr_spill_threshold", "DEPENDENT_TRANSACTIONS", "admin", LONG_AGO)],
    )
    command.show_detail(more)
    lines = shown_to.getvalue().splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 80
    # No word of a table is broken.
    assert any("public.customer_addresses_of_last_year " in line for line in lines)
    assert any("by admin, 01-01 12:00:00" in line for line in lines)
    # What goes on is indented, so that names stand alone on the left.
    assert sum(line.startswith("needs attention ") for line in lines) == 2


def test_the_first_words_of_each_line_of_a_check_are_in_troubleshooting() -> None:
    page = Path(__file__).parents[1].joinpath("docs/troubleshooting.md").read_text()
    words = re.findall(r"`([^`]+)`", page.split("| it says | do |")[1].split("\n\n")[0])
    wrong = [
        not_set_up("shop"),
        replace(found(), state=PipelineState.SET_UP),
        replace(found(), state=PipelineState.STOPPED),
        found(is_running=False),
        found(refused="another history"),
        found(None, lost="cannot connect"),
        replace(found(), lag_s=301.0),
        found(state=process(errors=1)),
    ]
    texts = [problem.text for status in wrong for problem in problems(status, max_lag_s=300, max_errors=0)]

    assert len(texts) == len(wrong)
    assert [text for text in texts if not text.startswith(tuple(words))] == []
