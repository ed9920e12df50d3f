"""`penstock status` for people, and `--check` for what watches over a pipeline."""

from __future__ import annotations

import pytest

from penstock.errors import OperatorError
from tests.cli.test_commands import SHOP
from tests.lab import Lab
from tests.program import Program


@pytest.fixture
def followed(lab: Lab) -> Lab:
    """A pipeline whose run is alive."""
    lab.source.execute(SHOP)
    lab.setup("SELECT 1")
    return lab


def test_a_check_says_what_is_wrong_a_line_each_and_nothing_else(followed: Lab, program: Program) -> None:
    healthy = program("status", "--check")
    assert (healthy.code, healthy.out, healthy.err) == (0, "", "")
    assert program("status", "--check", "--json").json["ok"] is True

    followed.target.execute("INSERT INTO customer VALUES (1000, 'in the way')")
    followed.source.execute("INSERT INTO customer VALUES (1000, 'x')")
    followed.apply()
    queued = program("status", "--check")
    assert queued.code == 1
    assert queued.out == "the error queue holds 1 transaction; `penstock errors list` says why\n"
    assert program("status", "--check", "--max-errors", "1").code == 0

    followed.source.execute("INSERT INTO customer VALUES (1001, 'x')")
    late = program("status", "--check", "--max-errors", "1", "--max-lag", "0", "--json")
    assert late.code == 1
    assert [one["kind"] for one in late.json["problems"]] == ["lag"]
    assert late.json["ok"] is False
    assert late.json["backlog_changes"] == 1


def test_a_run_that_was_killed_is_told_apart_from_one_that_ended(followed: Lab, program: Program) -> None:
    # Its session is gone, and it has left no word: as after `kill -9`.
    followed.ledger.close()

    assert program("status", "--json").json["state"] == "aborted"
    killed = program("status", "--check")
    assert killed.code == 1
    assert killed.out.startswith("the run aborted: it could not say why: it was killed")

    followed.ledger.set_status_of_last_run("it was told to stop")
    assert program("status", "--json").json["state"] == "stopped"
    ended = program("status", "--check", "--json")
    assert [one["kind"] for one in ended.json["problems"]] == ["not_running"]


def test_while_the_source_is_out_of_reach_what_the_ledger_knows_is_shown(followed: Lab, program: Program) -> None:
    followed.source.execute("INSERT INTO customer VALUES (1000, 'x')")
    followed.apply()
    away = {"SHOP_URL": "postgresql://penstock@127.0.0.1:1/shop"}

    lost = program("status", env=away)
    assert lost.code == 4
    assert "source out of reach" in lost.out
    assert "applied              1 transaction, 1 row change" in lost.out
    plain = program("status", "--json", env=away)
    assert plain.code == 4
    assert (plain.json["state"], plain.json["transactions"], plain.json["lag_s"]) == ("running", 1, None)

    checked = program("status", "--check", "--json", env=away)
    assert checked.code == 1
    assert [one["kind"] for one in checked.json["problems"]] == ["source_lost"]


def test_a_check_of_a_target_out_of_reach_says_that_it_cannot_tell(lab: Lab, program: Program) -> None:
    away = {"COPY_URL": "postgresql://penstock@127.0.0.1:1/copy"}
    unknown = program("status", "--check", env=away)
    assert unknown.code == 1
    assert unknown.out.startswith("cannot tell where the pipeline stands: ")
    assert program("status", env=away).code == 4
    assert program("status", "--check").out == "the pipeline is not set up; run `penstock setup`\n"


def test_options_of_a_check_go_with_it_alone(program: Program) -> None:
    for options in (["--max-lag", "3"], ["--max-errors", "0"], ["--check", "--watch"], ["--check", "--detail"]):
        assert program("status", *options).code == 2


def test_teardown_asks_before_captured_changes_are_lost(followed: Lab, program: Program) -> None:
    followed.source.execute("INSERT INTO customer VALUES (1000, 'x')")
    followed.ledger.close()

    refused = program("teardown")
    assert refused.code == 3
    assert "1 transaction at the source was not applied and is lost" in refused.err
    assert "--yes" in refused.err
    assert program("teardown", "--json").code == 3
    printed = program("teardown", "--print-sql")
    assert printed.code == 0
    assert "note: 1 transaction at the source was not applied and is lost" in printed.err
    with pytest.raises(OperatorError, match="was not applied and is lost"):
        followed.pipeline().teardown()
    assert program("status", "--json").json["backlog_changes"] == 1

    # Applied, nothing is lost, and nothing is asked.
    followed.acquire()
    followed.apply()
    followed.ledger.close()
    assert not followed.pipeline().removal().losses
    for number in (1001, 1002):
        followed.source.execute("INSERT INTO customer VALUES (%s, 'x')", [number])
    assert followed.pipeline().removal().losses == ["2 transactions at the source were not applied and are lost"]

    done = program("teardown", "--yes")
    assert done.code == 0, done.err
    assert program("status", "--json").json["state"] == "not set up"


def test_before_the_first_copy_a_teardown_loses_nothing(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    lab.source.execute("INSERT INTO customer VALUES (1000, 'x')")
    assert program("teardown").code == 0
