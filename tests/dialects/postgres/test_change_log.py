"""What reading a change log leaves behind."""

from __future__ import annotations

from penstock.position import Limit, Scn
from tests.lab import Lab


def read_on(lab: Lab, position: Scn) -> tuple[int, Scn]:
    """Read the next slice as a task does; returns how many changes it holds, and where it ends."""
    part = lab.log.next_slice(position, Limit())
    assert part is not None
    return sum(batch.num_rows for batch in lab.reader().read(part)), part.end


def sessions(lab: Lab) -> int:
    row = lab.source.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [f"penstock {lab.set_name} reader"]
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_session_that_has_read_a_huge_value_is_not_kept(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lab.source.execute("INSERT INTO t VALUES (1, 'small')")
    changes, position = read_on(lab, Scn(0))
    assert (changes, sessions(lab)) == (1, 2)

    lab.source.execute("INSERT INTO t VALUES (2, repeat('huge', 20 * 1024 * 1024))")
    changes, position = read_on(lab, position)
    # What is left is the one that lists transactions.
    assert (changes, sessions(lab)) == (1, 1)

    lab.source.execute("INSERT INTO t VALUES (3, 'small')")
    assert (read_on(lab, position)[0], sessions(lab)) == (1, 2)
