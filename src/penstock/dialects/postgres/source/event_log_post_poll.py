"""The user's own statements, which are run after a poll of an event log, to clean up the log for example.

What status rows get is decided in `sources.event_log`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing

import psycopg
from psycopg.pq import TransactionStatus

from penstock.dialects.postgres.connection import connect, label
from penstock.dialects.postgres.errors import redacted_reason
from penstock.errors import OperatorError, PenstockError
from penstock.events import Event, tell


def run_statements(url: str, pipeline: str, statements: Sequence[str]) -> None:
    """Run statements in order; one that fails is told, and keeps none of the others from running.

    Each has a session of its own, so that none changes a setting for another, or leaves a transaction open.
    """
    for number, statement in enumerate(statements, start=1):
        try:
            _run(url, pipeline, statement)
        except PenstockError as exc:
            text = (
                f"statement {number} of capture.event_log.post_poll failed, and is tried again after the next poll"
                f" that has events; the rows of this poll have their status: {exc}"
            )
            tell(Event.NOTE, text, {"setting": "post_poll", "statement": number}, level=logging.WARNING)


def _run(url: str, pipeline: str, statement: str) -> None:
    with closing(connect(url, f"penstock {pipeline} event log")) as connection:
        try:
            # Outside a transaction, which VACUUM needs.
            connection.execute(statement)
        except psycopg.Error as exc:
            # Without the advice that errors of our own statements come with.
            raise OperatorError(redacted_reason(exc), where=label(url)) from exc
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            raise OperatorError(
                "it leaves a transaction open, so what it did is rolled back",
                where=label(url),
                do="have it commit, or leave BEGIN out: a statement is a transaction of its own",
            )
