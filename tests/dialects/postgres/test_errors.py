"""What a server's error means: try again, stop, or put one transaction aside."""

from __future__ import annotations

import pytest

from penstock.dialects.postgres.errors import from_sqlstate, is_data_error
from penstock.errors import OperatorError, PenstockError, RetryableError

ENDED = {
    "25P03": "a transaction was idle for too long",
    "25P04": "a transaction took too long",
    "57P05": "a session was idle for too long",
    "57P01": "an administrator ended the session",
    "57014": "the statement was cancelled",
    "08006": "the connection is lost",
}


@pytest.mark.parametrize("sqlstate", ENDED, ids=ENDED.values())
def test_a_session_that_was_ended_is_tried_again(sqlstate: str) -> None:
    error = from_sqlstate(sqlstate, doing="apply", where="copy@db", reason="it is over")
    assert type(error) is RetryableError
    assert str(error) == "cannot apply: it is over (copy@db)"
    assert not is_data_error(sqlstate)


@pytest.mark.parametrize(("sqlstate", "kind"), [("28P01", OperatorError), ("42501", OperatorError)])
def test_what_a_person_has_to_mend_stops(sqlstate: str, kind: type[PenstockError]) -> None:
    assert type(from_sqlstate(sqlstate, doing="apply", where="copy@db", reason="no")) is kind
