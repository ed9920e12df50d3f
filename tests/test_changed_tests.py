"""`make check` runs the tests that a change may touch, the nearest first, and says how many it left out."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "changed_tests.py"))

IMPORTERS = {
    "penstock.text": {"penstock.patterns", "tests.test_text"},
    "penstock.patterns": {"tests.test_patterns", "tests.lab"},
    "tests.lab": {"tests.test_status"},
    "penstock.errors": {"tests.test_errors", "tests.test_messages"},
    "penstock.events": {"tests.test_errors"},
    "penstock.dialects.postgres.sql": set[str](),
    "penstock.dialects.postgres.catalog": {"tests.test_schema"},
}


def test_a_test_that_changed_comes_first_and_then_the_nearest() -> None:
    found = SCRIPT["nearest_tests"](["tests/test_logical.py", "src/penstock/text.py"], IMPORTERS)

    assert found == [
        "tests/test_logical.py",
        "tests/test_text.py",
        "tests/test_patterns.py",
        "tests/test_status.py",
    ]


def test_of_those_as_near_the_one_that_imports_least_comes_first() -> None:
    found = SCRIPT["nearest_tests"](["src/penstock/errors.py"], IMPORTERS)

    assert found == ["tests/test_messages.py", "tests/test_errors.py"]


def test_sql_is_read_by_the_modules_of_its_folder() -> None:
    found = SCRIPT["nearest_tests"](["src/penstock/dialects/postgres/lock.sql"], IMPORTERS)

    assert found == ["tests/test_schema.py"]


def test_pages_have_tests_too() -> None:
    assert SCRIPT["nearest_tests"](["docs/db2.md"], IMPORTERS) == ["tests/test_docs.py"]


def test_a_test_that_was_deleted_is_not_run() -> None:
    assert SCRIPT["nearest_tests"](["tests/test_that_was.py"], IMPORTERS) == []


def test_when_the_time_is_over_no_test_begins_and_the_rest_is_counted() -> None:
    session: Any = SimpleNamespace(testscollected=5, shouldstop=False)
    budget = SCRIPT["Budget"](0)

    one = budget.pytest_runtest_protocol(SimpleNamespace(session=session))
    next(one)
    assert not session.shouldstop
    next(one, None)

    assert budget.left == 4
    assert "4 tests have not run" in session.shouldstop
