"""Whose changes a capture takes."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.origins import EVERYTHING, USERS, Origins
from penstock.position import Scn
from penstock.sources.trigger_queue.position import QueueSlice

USER, UNMARKED, X, Y = (None, False), (None, True), ("x", True), ("y", True)


@pytest.mark.rule("A-185")
@pytest.mark.parametrize(
    ("origins", "taken"),
    [
        pytest.param(USERS, [USER], id="users"),
        pytest.param(EVERYTHING, [USER, UNMARKED, X, Y], id="everything"),
        pytest.param(Origins.only(["x"]), [X], id="only a mark"),
        pytest.param(Origins.only([None]), [USER, UNMARKED], id="only without a mark"),
        pytest.param(Origins.only([None, "y"]), [USER, UNMARKED, Y], id="only a mark, and without one"),
        pytest.param(Origins.without(["x"]), [USER, UNMARKED, Y], id="all but a mark"),
        pytest.param(Origins.without([None]), [X, Y], id="all with a mark"),
    ],
)
def test_marks_are_taken_or_left_out(origins: Origins, taken: list[tuple[str | None, bool]]) -> None:
    writers = [USER, UNMARKED, X, Y]
    assert [w for w in writers if origins.takes(w[0], by_apply=w[1])] == taken

    # A slice notes an apply process that sets no mark as an empty one.
    tags = ("x", "", "y")
    part = QueueSlice(
        after=Scn(0),
        end=Scn(9),
        commit_scns=np.array([1, 3, 5, 7]),
        txn_ids=np.array([11, 13, 15, 17]),
        tag_codes=np.array([-1, tags.index(""), tags.index("x"), tags.index("y")], np.int32),
        tags=tags,
        changes=np.ones(4, np.int64),
        size_bytes=np.zeros(4, np.int64),
        committed_at_us=np.zeros(4, np.int64),
    )
    left = part.of(origins)
    assert (left.after, left.end) == (0, 9)
    assert left.commit_scns.tolist() == [1 + 2 * writers.index(writer) for writer in taken]
    assert left.txn_ids.tolist() == [11 + 2 * writers.index(writer) for writer in taken]
