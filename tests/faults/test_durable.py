"""What somebody is told is applied, or what the source is told to forget, is on the target's disk."""

from __future__ import annotations

from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from tests.lab import Lab

SCHEMA = "CREATE TABLE t (id int PRIMARY KEY);"


def test_a_completed_batch_is_on_disk(lab: Lab) -> None:
    lab.setup(SCHEMA)
    for n in range(20):
        lab.source.execute("INSERT INTO t VALUES (%s)", [n])
        part = lab.next_slice()
        assert part is not None
        assert [r.failure for r in lab.apply_slice(part, lanes=1)] == [None]
        written = lab.target.execute("SELECT pg_current_wal_insert_lsn()").fetchone()

        lab.ledger.complete(part.end, part.last_committed_at, part.anchor)

        # The servers of the tests do not wait for the disk of themselves.
        assert written is not None
        flushed = lab.target.execute("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", [written[0]]).fetchone()
        assert flushed == (True,)


def test_a_retried_transaction_waits_for_the_disk(lab: Lab) -> None:
    lab.setup(SCHEMA)

    assert lab.target.execute("SHOW synchronous_commit").fetchone() == ("off",)
    with PostgresErrorQueue(lab.target_url, lab.name).retry_session() as session:
        assert session.connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
