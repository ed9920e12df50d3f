"""Working ahead changes when items are made, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.apply.lane import ServerConfig
from penstock.apply.prefetch import ahead
from penstock.dialects.postgres.target.session import PostgresSession
from penstock.errors import RetryableError
from tests.lab import Lab


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ahead"]


@pytest.mark.parametrize("depth", [1, 2, 10])
@pytest.mark.parametrize("items", [[], [1], list(range(50)), [None, None], [ValueError("an item, not an error")]])
def test_the_same_items_come_in_the_same_order(items: list[object], depth: int) -> None:
    assert list(ahead(items, depth=depth)) == items
    assert workers() == []


def test_the_next_item_is_made_while_this_one_is_used() -> None:
    is_next_made = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        is_next_made.set()
        yield 2

    made = ahead(items())

    assert next(made) == 1
    # Nobody asked for it yet.
    assert is_next_made.wait(timeout=30)
    assert list(made) == [2]


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt("stop")])
def test_an_error_comes_where_its_item_would_have_come(error: BaseException) -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise error

    made = ahead(items())

    assert [next(made), next(made)] == [1, 2]
    with pytest.raises(type(error)) as caught:
        next(made)
    assert caught.value is error
    assert workers() == []


def test_who_leaves_early_leaves_no_thread_behind() -> None:
    made = []

    def items() -> Iterator[int]:
        for n in range(1000):
            made.append(n)
            yield n

    for item in ahead(items()):
        if item == 2:
            break

    assert workers() == []
    assert len(made) < 10


def test_an_error_of_the_consumer_ends_the_thread() -> None:
    items = ahead(range(1000))
    next(items)

    with pytest.raises(ValueError, match="mine"):
        items.throw(ValueError("mine"))  # type: ignore[attr-defined]  # as a generator is told of it

    assert workers() == []


def test_nothing_is_made_before_somebody_asks() -> None:
    made = []

    def items() -> Iterator[int]:
        made.append(1)
        yield 1

    ahead(items())

    assert made == []


def test_a_lane_that_fails_reads_no_further(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    for n in range(100):
        lab.source.execute("INSERT INTO t VALUES (%s)", [n])

    def fail(*_: object, **__: object) -> None:
        raise RetryableError("the target is gone")

    monkeypatch.setattr(PostgresSession, "apply_net", fail)
    part = lab.next_slice()
    assert part is not None

    # What is kept of it, the traceback of its failure included, must not keep the threads.
    (result,) = lab.apply_slice(part, lanes=1, config=ServerConfig(group_changes=10))

    assert result.failure is not None
    assert workers() == []
