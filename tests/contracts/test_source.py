"""What `stream` and `pipeline.connectors` promise of a source, asked of every one there is."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import change as c
from penstock import wiring
from penstock.change import TableName
from penstock.config import capture
from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import ConfigError, MalformedInputError, OperatorError
from penstock.history import Consumer, History, Joined
from penstock.pipeline.connectors import DatabaseSource, Installable, SourceWithCopies
from penstock.position import START, Anchor, Limit, Scn
from penstock.schema import Dictionary
from penstock.snapshot.chunk import CopySource
from penstock.stream import Reader, Slice
from tests.archives import BOOK, ITEM
from tests.contracts.mortal import Died, Dying, Mortal
from tests.contracts.sources import SOURCES, Place, Stand
from tests.hand_made import Lcr, delete, insert, truncate, update

numbers = count(1)

STORY: Sequence[Sequence[Lcr]] = (
    [insert("item", id=1, name="one")],
    [insert("item", id=2, name=None), insert("item", id=3, name='"3\\\n,'), insert("book", id=1, name="")],
    [update("item", {"id": 1, "name": "one"}, {"name": "uno"})],
    [insert("item", id=n, name="x" * n) for n in range(100, 140)],
    [delete("item", id=2, name=None), insert("item", id=2, name="again")],
    [truncate("book")],
    [insert("book", id=2, name="é𝄞")],
)
"""What the shared stands hold: the fourth transaction is a large one."""

LARGE = 3

Change = tuple[str, str, Any, Any]


def expected(*transactions: Sequence[Lcr]) -> list[list[Change]]:
    """Each transaction as it must be read: (operation, table, before, after) of each change."""

    def texts(image: Any) -> Any:
        return None if image is None else {k: None if v is None else str(v) for k, v in image.items()}

    return [[(x.op, x.table, texts(x.before), texts(x.after)) for x in txn] for txn in transactions]


def everything(stand: Stand) -> list[list[Change]]:
    """The story as this stand tells it."""
    return expected(*stand.tells(STORY))


@pytest.fixture(scope="session")
def place(
    request: pytest.FixtureRequest,
    source_server: EmbeddedPostgres,
    target_server: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[], Place]:
    """Makes places, each with a folder of its own that is not there yet."""
    folder = tmp_path_factory.mktemp("sources")

    def broker() -> Any:
        return request.getfixturevalue("kafka")

    return lambda: Place(source_server, target_server, Path(folder, str(next(numbers))), broker)


@pytest.fixture(scope="module", params=SOURCES)
def told(request: pytest.FixtureRequest, place: Callable[[], Place]) -> Iterator[Stand]:
    """A source that holds the story, for tests that only look."""
    with SOURCES[request.param](place()) as stand:
        stand.commit(*STORY[:2])
        stand.commit(*STORY[2:])
        yield stand


# What rules see a source through hands these calls on as they are.
@pytest.fixture(params=[name for name in SOURCES if not name.endswith(", ruled")])
def new(request: pytest.FixtureRequest, place: Callable[[], Place]) -> Iterator[Stand]:
    """A source that holds nothing yet."""
    with SOURCES[request.param](place()) as stand:
        yield stand


def slices(
    stand: Stand, limit: Limit = Limit(), *, after: Scn = START, until: Scn | None = None, are_new: bool = False
) -> list[Slice]:
    """Slices from a position to the end; with `are_new`, each from a source that was opened for it alone."""
    found: list[Slice] = []
    source = stand.side().open_source()
    while (
        part := source.next_slice(after, limit, until=until, anchor=found[-1].anchor if found else None)
    ) is not None:
        found.append(part)
        after = part.end
        if are_new:
            source.close()
            source = stand.side().open_source()
    source.close()
    return found


def reader(stand: Stand, follows: Sequence[TableName] = (ITEM, BOOK)) -> Reader:
    """A reader that has travelled to a task."""
    side = stand.side()
    source = side.open_source()
    made = side.access.reader("shop", source.tables(), follows=follows)
    source.close()
    carried: Reader = pickle.loads(pickle.dumps(made))
    return carried


def rows_of(by: Reader, parts: Sequence[Slice], *, with_key: bool = True) -> list[dict[str, Any]]:
    """What is read of slices that have travelled, in commit order."""
    batches = [batch for part in parts for batch in by.read(pickle.loads(pickle.dumps(part)), with_key=with_key)]
    assert all(batch.schema.names == c.ARROW_SCHEMA.names for batch in batches)
    rows = pa.Table.from_batches(batches, c.ARROW_SCHEMA).to_pylist()
    return sorted(rows, key=lambda row: (row[c.COMMIT_SCN], row[c.CHANGE_SEQ]))


def transactions(rows: Sequence[dict[str, Any]]) -> list[list[Change]]:
    """The transactions that rows are of, each change as `expected` has it."""
    found: dict[int, list[Change]] = {}
    for row in rows:
        images = (None if row[name] is None else json.loads(row[name]) for name in (c.BEFORE, c.AFTER))
        found.setdefault(row[c.COMMIT_SCN], []).append((row[c.OP], row[c.TABLE_NAME], *images))
    return list(found.values())


def test_every_source_that_is_wired_is_asked() -> None:
    asked = {tuple(name.split(",")[0].split()) for name in SOURCES}
    assert {("trigger_queue", database) for database in wiring._DATABASES} <= asked
    # An event log is asked in tests/sources/event_log: a poll makes transactions of its rows.
    assert {kind.name for kind in capture.SOURCES} - {"event_log"} <= {first for first, *_ in asked}


limits = st.builds(
    Limit,
    max_transactions=st.integers(1, 8),
    max_changes=st.integers(1, 60),
    max_bytes=st.integers(1, 5_000),
    large_changes=st.integers(1, 60),
)


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=limits, parts=st.integers(1, 4), size=st.integers(1, 50))
def test_slices_of_any_size_hold_every_transaction_whole_once_and_in_order(
    told: Stand, limit: Limit, parts: int, size: int
) -> None:
    found = slices(told, limit)
    by = reader(told)

    assert transactions(rows_of(by, found)) == everything(told)
    assert transactions(rows_of(by, [x for part in found for x in part.split(parts)])) == everything(told)
    assert transactions(rows_of(by, [x for part in found for x in part.windows(repeat(size), 2**30)])) == everything(
        told
    )
    assert [part.after for part in found] == [START, *(part.end for part in found[:-1])]
    for part in found:
        assert all(a < b for a, b in pairwise([part.after, *part.commit_scns.tolist()]))
        assert len(part) == 0 or part.commit_scns[-1] <= part.end
        assert len(part) <= limit.max_transactions
        assert len(part) <= 1 or (part.total_changes <= limit.max_changes and part.size_bytes.sum() <= limit.max_bytes)
    assert [size for part in found for size in part.changes.tolist()] == [len(txn) for txn in STORY]


def test_positions_and_times_are_the_same_whoever_asks(told: Stand) -> None:
    def known(parts: Sequence[Slice]) -> list[tuple[int, int, int]]:
        return [
            entry
            for part in parts
            for entry in zip(
                part.commit_scns.tolist(), part.size_bytes.tolist(), part.committed_at_us.tolist(), strict=True
            )
        ]

    whole, pieces = slices(told), slices(told, Limit(max_transactions=1), are_new=True)
    assert known(whole) == known(pieces)
    for n, (scn, *_) in list(enumerate(known(whole)))[::2]:
        assert known(slices(told, after=Scn(scn))) == known(whole)[n + 1 :]
        assert transactions(rows_of(reader(told), slices(told, after=Scn(scn)))) == everything(told)[n + 1 :]
    assert rows_of(reader(told), whole) == rows_of(reader(told), pieces)


def test_changes_say_which_they_are(told: Stand) -> None:
    side = told.side()
    source = side.open_source()
    dictionary = Dictionary(version.table for version in source.tables())
    assert source.count_tables() == len(source.tables())
    source.close()
    parts = slices(told)
    rows = rows_of(reader(told), parts)

    for scn in {row[c.COMMIT_SCN] for row in rows}:
        txn = [row for row in rows if row[c.COMMIT_SCN] == scn]
        assert [row[c.CHANGE_SEQ] for row in txn] == list(range(len(txn)))
        assert {row[c.TXN_CHANGES] for row in txn} <= {None, len(txn)}
        assert len({(row[c.TXN_ID], row[c.COMMITTED_AT]) for row in txn}) == 1
    assert len({row[c.TXN_ID] for row in rows}) == len(STORY)
    assert {row[c.SOURCE] for row in rows} == {"shop"}
    for row in rows:
        table = dictionary.get(TableName(row[c.SCHEMA_NAME], row[c.TABLE_NAME]), row[c.TABLE_VERSION])
        assert set(json.loads(row[c.AFTER] or "{}")) <= set(table.column_names)
        image = json.loads(row[c.BEFORE] or row[c.AFTER] or "null")
        assert json.loads(row[c.KEY] or "null") == (None if image is None else {"id": image["id"]})
    without = rows_of(reader(told), parts, with_key=False)
    assert [row | {c.KEY: None} for row in without] == [row | {c.KEY: None} for row in rows]


def test_a_large_transaction_comes_alone_and_can_be_read_again(told: Stand) -> None:
    (large,) = [part for part in slices(told, Limit(large_changes=30)) if part.is_large]
    by = reader(told)

    assert large.changes.tolist() == [40]
    for _ in range(2):
        assert transactions(rows_of(by, [large])) == [everything(told)[LARGE]]


def test_a_slice_ends_where_it_was_told_to(told: Stand) -> None:
    ends = np.concatenate([part.commit_scns for part in slices(told)]).tolist()
    for n, scn in enumerate(ends):
        for until in (scn, scn + 1):
            found = slices(told, until=Scn(until))
            assert found[-1].end <= until
            within = [x for x in ends if x <= until]
            assert [x for part in found for x in part.commit_scns.tolist()] == within[: max(n + 1, len(within))]


def test_a_reader_reads_of_the_tables_that_it_follows(told: Stand) -> None:
    for follows in ([ITEM], [BOOK], []):
        by = reader(told, follows)
        wanted = [[x for x in txn if TableName("public", x[1]) in follows] for txn in everything(told)]
        assert transactions(rows_of(by, slices(told))) == [txn for txn in wanted if txn]
        assert by.leaves_out


def test_a_slice_that_counts_otherwise_than_the_source_is_refused(told: Stand) -> None:
    (right, *_) = [part for part in slices(told) if 3 in part.changes]
    for wrong in (1, -1):
        part = replace(right, changes=right.changes + wrong * (right.changes == 3))
        with pytest.raises((OperatorError, MalformedInputError)) as refused:
            rows_of(reader(told), [part])
        assert f"position {right.commit_scns[right.changes == 3][0]}" in str(refused.value)


def test_a_tick_lies_behind_all_that_was_committed(told: Stand) -> None:
    source = told.side().open_source()
    at = source.tick()
    source.close()
    assert transactions(rows_of(reader(told), slices(told, until=at))) == everything(told)


def test_the_backlog_is_what_lies_behind_a_position(told: Stand) -> None:
    source = told.side().open_source()
    (first, *_), end = slices(told, Limit(max_transactions=1)), source.tick()
    everything, rest, nothing = (source.backlog(position) for position in (START, first.end, end))
    source.close()

    changes = sum(map(len, STORY))
    assert (everything.changes, nothing.changes) == (changes, 0)
    assert changes - 1 <= rest.changes <= changes
    assert everything.oldest_at is not None
    assert everything.size_bytes > 0
    assert nothing.oldest_at is None


def test_a_source_that_was_closed_opens_again(told: Stand) -> None:
    source = told.side().open_source()
    for _ in range(2):
        source.open()
        assert source.next_slice(START, Limit()) is not None
        source.close()


def test_tables_are_found_by_patterns_and_described(told: Stand) -> None:
    side = told.side()
    assert list(side.match(["public.*"])) == [BOOK, ITEM]
    assert list(side.match(["public.it*"])) == [ITEM]
    with pytest.raises(OperatorError, match=r"public\.nothing"):
        side.match(["public.item", "public.nothing"])
    described = side.describe([ITEM, TableName("public", "nothing")])
    assert list(described) == [ITEM]
    assert (described[ITEM].column_names, described[ITEM].primary_key and described[ITEM].primary_key.columns) == (
        ["id", "name"],
        ("id",),
    )
    assert side.has_capture()
    assert side.label
    assert side.plan([BOOK, ITEM], []).faults == []
    # Where there is no database, schemas say all that can be said.
    assert (side.blueprint([ITEM]) is not None) == isinstance(side, Installable)


def test_a_point_is_found_or_refused(told: Stand) -> None:
    side = told.side()
    last = max(int(scn) for part in slices(told) for scn in part.commit_scns)
    assert side.position_of(str(last), option="--until") == last
    with pytest.raises(OperatorError):
        side.position_of(str(last + 1_000_000), option="--until")
    with pytest.raises(ConfigError, match="--until"):
        side.position_of("soon", option="--until")


def a_consumer() -> Consumer:
    n = next(numbers)
    return Consumer(f"id{n}", f"process {n}", "a target", f"place {n}")


@dataclass
class Memory:
    """What the ledger of a process holds, and its output: both change in one step or not at all."""

    consumer: Consumer = field(default_factory=a_consumer)
    joined: Joined | None = None
    position: Scn = START
    anchor: Anchor | None = None
    taken: list[list[Change]] = field(default_factory=list)

    @property
    def history(self) -> History:
        origin = None if self.joined is None else self.joined.origin
        return History(self.consumer, origin, self.position, self.anchor, self.anchor, is_new=origin is None)

    def adopt(self, joined: Joined) -> None:
        self.joined, self.position, self.anchor = joined, joined.position, joined.anchor

    def take(self, part: Slice, rows: Sequence[dict[str, Any]]) -> None:
        assert part.after == self.position
        self.taken += transactions(rows)
        self.position, self.anchor = part.end, part.anchor or self.anchor


def run(stand: Stand, memory: Memory, mortal: Mortal | None = None) -> bool:
    """Follow a source to its end, as a run does; returns whether the process lived."""
    side = stand.side()
    opened = side.open_source()
    source = Dying(opened, mortal or Mortal())
    try:
        memory.adopt(source.join(memory.history))
        by = side.access.reader("shop", source.tables(), follows=[ITEM, BOOK])
        limit = Limit(max_transactions=2)
        while (part := source.next_slice(memory.position, limit, anchor=memory.anchor)) is not None:
            memory.take(part, rows_of(by, [part]))
            source.free(part.end, memory.consumer.id)
    except Died:
        return False
    finally:
        opened.close()
    return True


def test_a_process_that_dies_between_any_two_calls_loses_and_doubles_nothing(new: Stand) -> None:
    memory = Memory()
    assert run(new, memory)
    new.commit(*STORY[:4])
    new.commit(*STORY[4:])

    deaths = 0
    while not run(new, memory, Mortal.nth(deaths)):
        deaths += 1

    assert memory.taken == everything(new)
    assert deaths >= 6


def test_what_was_freed_for_one_is_kept_for_another_and_nothing_behind_it_is_lost(new: Stand) -> None:
    one, other = Memory(), Memory()
    for memory in (one, other):
        run(new, memory)
    new.commit(*STORY[:3])
    run(new, one)
    new.commit(*STORY[3:])
    source = new.side().open_source()
    # A run that was replaced wakes up, and frees what it knows of.
    source.free(START, one.consumer.id)
    source.seen(one.consumer.id)
    source.close()

    for memory in (one, other):
        run(new, memory)
        assert memory.taken == everything(new)


def test_a_process_goes_on_with_its_own_history_and_with_no_other(new: Stand, place: Callable[[], Place]) -> None:
    memory, stranger = Memory(), Memory()
    run(new, memory)
    new.commit(*STORY[:2])
    run(new, memory)
    source = new.side().open_source()
    source.hold_against(memory.history)
    assert memory.joined is not None
    stranger.adopt(replace(memory.joined, origin=replace(memory.joined.origin, set_id="another")))
    assert memory.anchor is not None
    behind_the_end = Scn(memory.position + 1_000)
    ahead = replace(memory, position=behind_the_end, anchor=Anchor(behind_the_end, memory.anchor.mark))
    assert memory.taken == everything(new)[:2]

    for wrong in (stranger, ahead):
        for ask in (source.join, source.hold_against):
            with pytest.raises(OperatorError):
                ask(wrong.history)
    source.close()


def test_what_comes_later_is_found_later_and_wakes_who_waits(new: Stand) -> None:
    source = new.side().open_source()
    source.open()
    memory = Memory()
    memory.adopt(source.join(memory.history))
    assert source.next_slice(memory.position, Limit(), anchor=memory.anchor) is None
    stop = threading.Event()
    began = time.monotonic()
    source.wait(stop, 0.01)
    assert time.monotonic() - began < 30

    committing = threading.Timer(0.2, new.commit, STORY[:1])
    committing.start()
    while (part := source.next_slice(memory.position, Limit(), anchor=memory.anchor)) is None or len(part) == 0:
        memory.position = part.end if part is not None else memory.position
        source.wait(stop, 60)
    committing.join()
    assert transactions(rows_of(reader(new), [part])) == everything(new)[:1]
    assert time.monotonic() - began < 55

    stop.set()
    while (rest := source.next_slice(part.end, Limit())) is not None:
        part = rest
    source.wait(stop, 60)
    assert time.monotonic() - began < 55
    source.close()


def test_a_copy_and_the_changes_behind_it_are_the_table(new: Stand) -> None:
    """Also what is committed while the copy is under way."""
    memory = Memory()
    run(new, memory)
    side = new.side()
    if not isinstance(side, SourceWithCopies):
        new.commit(*STORY[:4])
    rows, at = copied(side, lambda: new.commit(*(STORY if isinstance(side, SourceWithCopies) else STORY[4:])))

    for change in rows_of(reader(new), slices(new)):
        if change[c.COMMIT_SCN] > at and change[c.TABLE_NAME] == ITEM.name:
            before, after = (json.loads(change[name] or "null") for name in (c.BEFORE, c.AFTER))
            old = rows.pop(before["id"]) if before is not None else {}
            if after is not None:
                rows[(old | after)["id"]] = old | after

    assert {int(key): row["name"] for key, row in rows.items()} == {
        1: "uno",
        2: "again",
        3: '"3\\\n,',
        **{n: "x" * n for n in range(100, 140)},
    }


def copied(side: Any, meanwhile: Callable[[], None]) -> tuple[dict[str, dict[str, Any]], Scn]:
    """The rows of a copy of `item`, by key, and its position; something happens before any of them is read."""
    if isinstance(side, SourceWithCopies):
        assert set(side.first_copies([ITEM, BOOK, TableName("public", "nothing")])) == {ITEM, BOOK}
        (copy,) = side.copies_at([ITEM, BOOK], START)
        origin = side.stored(copy, threading.Event())
    else:
        assert isinstance(side, DatabaseSource)
        origin = side.origin()
    table = side.describe([ITEM])[ITEM]
    found: dict[str, dict[str, Any]] = {}
    with origin.hold_snapshot() as held:
        meanwhile()
        chunks = origin.cut_into_chunks([ITEM])
        assert chunks
        by = pickle.loads(pickle.dumps(side.access)).chunk_reader(CopySource(held.text, held.exported))
        assert origin.can_resume(ITEM, held.text)
        for chunk in chunks:
            rows = [row for batch in by.read_chunk(table, ["id", "name"], chunk) for row in batch.to_pylist()]
            assert by.count_rows(table, chunk) == len(rows)
            found |= {row["id"]: row for row in rows}
        by.close()
    return found, held.scn
