"""The word and the colour of each state, and numbers as people read them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.apply.detail import Detail, TableDetail
from penstock.change import TableName
from penstock.database import LockWait
from penstock.pipeline.locks import Work
from penstock.pipeline.observation import Observation
from penstock.pipeline.status import PipelineState, not_set_up
from penstock.position import Scn
from penstock.web import words
from penstock.web.render import with_code

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUNNING = replace(not_set_up("shop"), state=PipelineState.RUNNING, lag_s=0.0)


def seen(**status: Any) -> Observation:
    return Observation(NOW, replace(RUNNING, **status))


def waits(seconds: float) -> Observation:
    wait = LockWait(1, seconds, TableName("public", "t"), "copy", 2, "end it")
    return replace(seen(), work=Work([], [wait]))


@pytest.mark.parametrize(
    ("observation", "word", "mood"),
    [
        (None, "looking", "off"),
        (Observation(NOW, lost="away"), "out of reach", "bad"),
        (Observation(NOW, not_set_up("shop")), "not set up", "off"),
        (seen(), "following", "good"),
        (seen(errors=1), "following, with errors", "bad"),
        (seen(lag_s=31.0), "catching up", "late"),
        (seen(lag_s=31.0, errors=1), "catching up, with errors", "bad"),
        (seen(lag_s=None, to_copy=2), "copying", "busy"),
        (seen(source_lost="away"), "source out of reach", "bad"),
        (waits(6), "waits for a lock", "late"),
        (waits(1), "following", "good"),
        (seen(state=PipelineState.STOPPED), "stopped", "off"),
        (seen(state=PipelineState.STOPPED, refused="other history"), "stopped", "bad"),
        (seen(state=PipelineState.ABORTED), "aborted", "bad"),
    ],
)
def test_each_state_has_a_word_and_a_colour(observation: Observation | None, word: str, mood: str) -> None:
    assert words.state_of(observation) == words.ShownState(word, words.Mood(mood))


def test_a_copy_is_told_by_the_chunks_that_are_known() -> None:
    tables = [
        TableDetail(TableName("public", "a"), Scn(1), True, 0, 0, 9, 9, 900),
        TableDetail(TableName("public", "b"), Scn(1), False, 0, 0, 4, 1, 100),
        TableDetail(TableName("public", "c"), None, False, 0, 0),
    ]
    copying = replace(seen(to_copy=2), detail=Detail([], tables, []))
    assert words.copy_progress(copying) == words.CopyBar(1, 4, 100)
    assert words.copy_progress(replace(seen(), detail=Detail([], tables, []))) is None
    assert words.copy_progress(seen(to_copy=2)) is None


def test_numbers_sizes_and_times_are_short() -> None:
    assert [words.number(n) for n in (None, 0, 1234567, 0.6)] == ["–", "0", "1,234,567", "1"]
    assert [words.size(n) for n in (0, 999, 1500, 45_400, 999_000_000, 5 * 10**15)] == [
        "0 B", "999 B", "1.5 kB", "45.4 kB", "999 MB", "5,000.0 TB"
    ]  # fmt: skip
    assert words.clock(NOW, NOW) == "03:04:05"
    assert words.clock(NOW, datetime(2026, 1, 3, tzinfo=UTC)) == "2026-01-02 03:04:05"
    assert words.value("x" * 5000).endswith("… (5,000 characters)")
    assert words.value(None) == "NULL"


def test_what_people_type_is_set_apart_and_nothing_of_a_message_is_html() -> None:
    assert with_code("run `penstock setup` <now>") == "run <code>penstock setup</code> &lt;now&gt;"
    assert with_code("`<b>`") == "<code>&lt;b&gt;</code>"
    assert with_code("a ` b <i>") == "a ` b &lt;i&gt;"
