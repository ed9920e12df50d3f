"""What is written of each step of a copy is all that changes: a topic keeps nothing but these entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from penstock.change import Op, TableName
from penstock.position import Anchor, Scn
from penstock.sinks.events.put_aside import PutAside
from penstock.sinks.events.state import (
    OpenPublishedCopy,
    PublishedState,
    RequestedCopy,
    StateEntry,
    published_state_of,
)
from penstock.snapshot.chunk import Chunk

# With a dot between, they look the same.
T, U = TableName("public", "u.v"), TableName("public.u", "v")
IDS = {T: 7, U: 8}

Step = tuple[PublishedState, Sequence[StateEntry]]


class Topic:
    """A topic of positions, compacted: the last record of each key."""

    def __init__(self) -> None:
        self.state = PublishedState(id="a", source="shop")
        self._last: dict[str, bytes | None] = {}
        self.write((self.state, self.state.entries()))

    def write(self, step: Step) -> None:
        self.state, entries = step
        self._last |= {entry.key: entry.value_bytes for entry in entries}

        read = published_state_of(((key.encode(), value) for key, value in self._last.items()), where="")
        whole = published_state_of(((e.key.encode(), e.value_bytes) for e in self.state.entries()), where="")

        assert read == whole == self.state

    def begin(self, scn: int, **more: object) -> OpenPublishedCopy:
        chunks = [Chunk(name, number, None, None, False, 10) for name in IDS for number in range(2)]
        copy = OpenPublishedCopy(
            f"copy{scn}", Anchor(Scn(scn), "m"), "s", 0, IDS, False, len(chunks), dict(enumerate(chunks)), **more
        )  # type: ignore[arg-type]
        self.write(self.state.beginning(copy))
        return copy

    def publish(self, copy: OpenPublishedCopy, *numbers: int) -> OpenPublishedCopy:
        sent = {copy.todo[number].table: 2 for number in numbers}
        done = copy.without_chunks(numbers, 5, sent)
        state = self.state.with_copy(done).with_records(2)
        self.write((state, [*done.progress(numbers), state.position_entry]))
        return done


@pytest.fixture
def topic() -> Topic:
    """A topic that both tables were published to."""
    made = Topic()
    copy = made.publish(made.begin(5), 0, 1, 2, 3)
    made.write((made.state.with_copied(copy), copy.ended()))
    assert made.state.copied == {T: 5, U: 5}
    return made


def test_a_request_has_a_table_copied_and_withdrawn_it_has_not(topic: Topic) -> None:
    topic.write(topic.state.requesting([RequestedCopy(T, 7, recreates=True)]))
    assert not topic.state.is_copied(7, T)
    # Another table has the name by now.
    assert topic.state.is_copied(8, U)

    topic.write(topic.state.without_requests({T}))
    assert topic.state.is_copied(7, T)


def test_tables_count_as_copied_only_where_their_copy_is_whole(topic: Topic) -> None:
    topic.write(topic.state.requesting([RequestedCopy(T, 7)]))
    former = {T: Anchor(Scn(5), "m")}
    copy = topic.publish(topic.begin(9, number=4, former=former, drops=frozenset({U})), 0)
    assert not topic.state.is_copied(7, T)
    assert topic.state.requested == {}

    copy = topic.publish(copy, 1, 2, 3)
    topic.write((topic.state.with_copied(copy), copy.ended()))
    assert topic.state.is_copied(7, T)
    assert topic.state.copied[T] == 9


@pytest.mark.parametrize("cancel", [PublishedState.cancelling, PublishedState.leaving_out])
def test_a_table_that_has_begun_is_not_as_before(topic: Topic, cancel: Callable[..., Step]) -> None:
    former = {name: Anchor(Scn(5), "m") for name in IDS}
    copy = topic.publish(topic.begin(9, former=former), 0)

    topic.write(cancel(topic.state, copy, {T, U}))

    assert topic.state.copies == {}
    assert not topic.state.is_copied(7, T)
    newest = topic.state.newest_cut
    assert newest is not None
    assert newest.scn == 9
    if cancel is PublishedState.leaving_out:
        # What a user has asked for is asked for still.
        assert topic.state.requested.keys() == {T, U}
    else:
        assert topic.state.withheld == {T: 7}
        assert topic.state.is_copied(8, U)

    topic.write(topic.state.requesting([RequestedCopy(T, 7)]))
    assert topic.state.withheld == {}
    topic.write(topic.state.without_requests({T}))
    assert topic.state.withheld == ({T: 7} if cancel is PublishedState.cancelling else {})
    topic.begin(11)
    assert topic.state.cancelled == {}


@pytest.mark.parametrize(
    ("op", "held"),
    [(Op.UPDATE, [False, True, True]), (Op.SNAPSHOT, [False, False, True])],
    ids=["change", "row of a copy"],
)
def test_a_copy_holds_what_entries_of_before_it_say(topic: Topic, op: Op, held: list[bool]) -> None:
    """Of a row that a copy has put aside itself, another one is needed."""
    entry = PutAside(1, "7", 6, 0, 1, 1, 1, "", T, op, 0)

    def holds() -> bool:
        return topic.state.has_copied_since(T, entry)

    found = [holds()]
    copy = topic.begin(6)
    found.append(holds())
    topic.write((topic.state.with_copied(copy), copy.ended()))
    topic.begin(9)
    found.append(holds())
    assert found == held
