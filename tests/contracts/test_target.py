"""What `apply.target`, `apply.ledger` and `snapshot.task` promise of a target, asked of every one there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock import wiring
from penstock.apply import apply_errors
from penstock.apply.apply_errors import ApplyError
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.ledger import LaneClaim
from penstock.apply.session import TargetSession
from penstock.apply.target import RowMatch, TargetTable
from penstock.apply.task import TaskContext, apply_lane, in_commit_order
from penstock.change import TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import FencedError
from penstock.position import Anchor, Scn
from penstock.snapshot.chunk import Chunk
from penstock.snapshot.instantiate import HeldSnapshot
from penstock.snapshot.task import ChunkLoader
from tests.contracts.mortal import Died, Dying, Mortal
from tests.contracts.targets import TARGETS, Servers, Stand
from tests.hand_made import T, as_batch, delete, insert, truncate, update

CHILD, PARENT, ENTRY = (TableName("public", name) for name in ("child", "parent", "entry"))


@pytest.fixture(scope="module")
def servers(target_server: EmbeddedPostgres, old_server: EmbeddedPostgres) -> Servers:
    return Servers(target_server, old_server)


@pytest.fixture(scope="module", params=TARGETS)
def kept(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Stand]:
    """A target that every test leaves as it was."""
    with TARGETS[request.param](servers) as target:
        yield target


@pytest.fixture(params=TARGETS)
def new(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Stand]:
    """A target of this test's own."""
    with TARGETS[request.param](servers) as target:
        yield target


class Undone(Exception):
    """Ends a transaction that is not to be committed."""


class Session:
    """A session of a task, and the tables by their names."""

    def __init__(self, target: Stand) -> None:
        context = target.context()
        self.target = target
        self.tables = context.catalog.tables
        made = context.target.session(target.state.epoch)
        self.session: TargetSession = made

    def table(self, name: TableName) -> TargetTable:
        return self.tables[name]

    @contextmanager
    def undone(self) -> Iterator[TargetSession]:
        """A transaction that is rolled back."""
        with suppress(Undone), self.session.transaction():
            yield self.session
            raise Undone

    def refusal(self, *calls: Any) -> int:
        """The number of the error that a transaction of these calls ends with."""
        try:
            with self.session.transaction():
                for call in calls:
                    call()
        except ApplyError as exc:
            return exc.number
        raise AssertionError("it was not refused")


@pytest.fixture
def session(kept: Stand) -> Session:
    return Session(kept)


def everything(target: Stand) -> list[Any]:
    return [sorted(target.rows_of(name), key=repr) for name in ("parent", "child", "entry")]


def test_every_target_that_is_wired_is_asked() -> None:
    assert set(wiring._TARGETS) <= {name.split()[0] for name in TARGETS}


def test_a_transaction_is_seen_whole_or_not_at_all(new: Stand) -> None:
    session, before = Session(new), everything(new)
    entry = session.table(ENTRY)

    with session.undone() as open_:
        open_.insert(entry, {"at": "5", "body": None})
        assert everything(new) == before
    assert everything(new) == before
    with session.session.transaction():
        session.session.insert(entry, {"at": "5", "body": None})
    assert (5, None) in new.rows_of("entry")


def test_rows_are_found_by_their_key_and_what_they_must_still_be(session: Session) -> None:
    parent, entry = session.table(PARENT), session.table(ENTRY)
    with session.undone() as open_:
        assert open_.update(parent, RowMatch({"id": "1"}, {"name": "one"}), {"name": "uno"}) == 1
        assert open_.update(parent, RowMatch({"id": "1"}, {"name": "one"}), {"name": "eins"}) == 0
        assert open_.update(parent, RowMatch({"id": "9"}, {}), {"name": "nine"}) == 0
        assert open_.delete(parent, RowMatch({"id": "2"}, {"name": "three"})) == 0
        assert open_.delete(parent, RowMatch({"id": "2"}, {"name": "two"})) == 1
        twice = {"at": "0", "body": "twice"}
        assert open_.update(entry, RowMatch({}, twice, only_one=True), {"body": None}) == 1
        assert open_.delete(entry, RowMatch({}, twice | {"body": None})) == 1
        open_.insert(entry, twice)
        assert open_.delete(entry, RowMatch({}, twice)) == 2


def test_rows_are_locked_whatever_else_they_hold(session: Session) -> None:
    with session.undone() as open_:
        assert open_.lock_rows(session.table(PARENT), RowMatch({"id": "1"}, {"name": "x"})) == [
            {"id": "1", "name": "one"}
        ]
        assert open_.lock_rows(session.table(PARENT), RowMatch({"id": "9"}, {})) == []
        assert len(open_.lock_rows(session.table(ENTRY), RowMatch({"at": "0", "body": "twice"}, {}))) == 2


def test_tables_are_emptied_together(session: Session) -> None:
    with session.undone() as open_:
        open_.truncate([session.table(CHILD), session.table(PARENT)])
        assert open_.lock_rows(session.table(PARENT), RowMatch({"id": "1"}, {})) == []


def test_what_the_target_refuses_has_the_same_number_everywhere(session: Session) -> None:
    do, parent, before = session.session, session.table(PARENT), everything(session.target)

    def adds(table: TableName, **values: str | None) -> Any:
        return lambda: do.insert(session.table(table), values)

    assert session.refusal(adds(PARENT, id="1", name="x")) == apply_errors.UNIQUE_VIOLATED
    assert session.refusal(adds(PARENT, id="3", name=None)) == apply_errors.NULL_REFUSED
    assert session.refusal(adds(PARENT, id="3", name="too long")) == apply_errors.VALUE_TOO_LONG
    assert session.refusal(adds(PARENT, id="three", name="x")) == apply_errors.VALUE_MALFORMED
    missing = replace(parent, schema=replace(parent.schema, name=TableName("public", "missing")))
    assert session.refusal(lambda: do.insert(missing, {"id": "1"})) == apply_errors.TABLE_MISSING
    assert everything(session.target) == before


def test_what_a_row_breaks_is_told_before_it_is_committed(session: Session) -> None:
    """References and deferred keys: the session does not check them by itself, for transactions come in parts."""
    parent, child = session.table(PARENT), session.table(CHILD)
    (key,) = child.schema.foreign_keys
    with session.undone() as open_:
        assert not open_.is_reference_broken(key, ["1"], is_child=True)
        open_.insert(child, {"id": "3", "parent": "9", "code": "a"})
        assert open_.is_reference_broken(key, ["9"], is_child=True)
        assert open_.is_reference_broken(key, ["9"], is_child=False)
        assert not open_.is_reference_broken(key, ["8"], is_child=False)
        assert open_.is_unique_broken(child, {"id": "3", "parent": "9", "code": "a"}) == "code"
        assert open_.is_unique_broken(child, {"id": "2", "parent": "1", "code": "b"}) is None
        assert open_.unfit_column(parent, {"id": "7", "name": "too long"}) == "name"
        assert open_.unfit_column(parent, {"id": "7", "name": "short"}) is None
        in_the_way = open_.rows_in_the_way(parent, "parent_pkey", {"id": "1", "name": "x"})
        assert in_the_way == [{"id": "1", "name": "one"}]


def test_a_chunk_is_copied_once_by_the_run_that_began_it(new: Stand) -> None:
    loader: Any = new.context().target.session(new.state.epoch)
    copy: ChunkLoader = loader
    chunks = [Chunk(ENTRY, 0), Chunk(ENTRY, 1)]
    new.ledger.begin_copies(chunks, HeldSnapshot("s", "", Anchor(Scn(3), "m")))
    entry = Session(new).table(ENTRY)
    rows = pa.table({"at": ["7", None], "body": ["é\n", ""]})

    def load(chunk: Chunk, epoch: int) -> bool | None:
        with copy.transaction():
            is_todo = copy.open_chunk("A1", epoch, chunk)
            if is_todo:
                copy.load(entry, rows)
                copy.close_chunk("A1", chunk, rows.num_rows)
            return is_todo

    epoch = new.state.epoch
    assert load(chunks[0], epoch - 1) is None
    assert load(Chunk(ENTRY, 2), epoch) is None
    with suppress(Undone), copy.transaction():
        assert copy.open_chunk("A1", epoch, chunks[0])
        copy.load(entry, rows)
        raise Undone
    assert [load(chunk, epoch) for chunk in (chunks[0], chunks[0])] == [True, False]
    assert new.ledger.open_copies()[0].todo == [chunks[1]]
    assert [row for row in everything(new)[2] if row[0] != 0] == [(7, "é\n"), (None, "")]


TRANSACTIONS = [
    T(20, insert("entry", at=20, body="a"), update("parent", {"id": 1, "name": "one"}, {"name": "uno"})),
    T(21, insert("entry", at=21, body=None), insert("parent", id=3, name="three")),
    # Its parent is missing: it goes to the error queue, whole.
    T(22, insert("entry", at=22, body="never"), insert("child", id=9, parent=99, code="z")),
    T(23, insert("entry", at=23, body="b"), insert("child", id=3, parent=3, code="c")),
    T(24, insert("entry", at=24, body="c"), delete("parent", id=2, name="two")),
    T(25, insert("entry", at=25, body="d"), truncate("child")),
    T(26, insert("entry", at=26, body="e"), insert("child", id=4, parent=3, code="a")),
]


class DyingTarget:
    """How a task that dies reaches a target."""

    def __init__(self, inner: Any, mortal: Mortal) -> None:
        self._inner, self._mortal = inner, mortal

    def session(self, epoch: int) -> Any:
        return DyingSession(self._inner.session(epoch), self._mortal)


class DyingSession(Dying):
    """A session, and the ledger of its lane, in a task that dies."""

    def lane_ledger(self, claim: LaneClaim) -> Any:
        return Dying(self.inner.lane_ledger(claim), self._mortal)


def serve(
    target: Stand, context: TaskContext, *, attempt: int, mortal: Mortal, epoch: int | None = None, moves: bool = True
) -> LaneResult:
    rows = in_commit_order([as_batch(TRANSACTIONS)], context.catalog.instantiated)
    claim = LaneClaim("A1", target.state.epoch if epoch is None else epoch, 0, attempt, moves)
    return apply_lane(rows.to_batches(), claim, replace(context, target=DyingTarget(context.target, mortal)))


APPLIED = [20, 21, 23, 24, 25, 26]


@pytest.mark.parametrize(
    ("use_set_path", "moves"), [(True, True), (False, False)], ids=["sets, one lane", "rows, more"]
)
def test_a_task_that_dies_between_any_two_calls_loses_and_doubles_nothing(
    new: Stand, use_set_path: bool, moves: bool
) -> None:
    context, deaths = new.context(ServerConfig(group_changes=4, use_set_path=use_set_path)), 0
    while True:
        try:
            result = serve(new, context, attempt=deaths + 1, mortal=Mortal.nth(deaths), moves=moves)
        except Died:
            deaths += 1
            there = sorted(at for at, _ in new.rows_of("entry") if at)
            assert there == APPLIED[: len(there)]
        else:
            break

    assert result.failure is None
    assert deaths >= 8
    new.ledger.complete(Scn(26), None, None)
    parents, children, entries = everything(new)
    assert [at for at, _ in entries if at] == APPLIED
    assert (parents, children) == ([(1, "uno"), (3, "three")], [(4, 3, "a")])
    assert [entry[:2] for entry in new.failed()] == [(22, apply_errors.FOREIGN_KEY_VIOLATED)]
    state = new.ledger.state()
    assert state is not None
    assert (state.low_watermark, state.transactions, state.errors) == (26, 6, 1)


@pytest.mark.rule("A-212")
@pytest.mark.parametrize("moves", [True, False], ids=["one lane", "several lanes"])
def test_a_task_whose_claim_has_passed_to_another_writes_nothing(new: Stand, moves: bool) -> None:
    context, before = new.context(ServerConfig(group_changes=4)), everything(new)

    of_an_earlier_run = serve(new, context, attempt=9, mortal=Mortal(), epoch=new.state.epoch - 1, moves=moves)
    assert isinstance(of_an_earlier_run.failure, FencedError)
    assert everything(new) == before

    assert serve(new, context, attempt=2, mortal=Mortal(), moves=moves).failure is None
    after = everything(new)
    zombie = serve(new, context, attempt=1, mortal=Mortal(), moves=moves)
    assert isinstance(zombie.failure, FencedError)
    again = serve(new, context, attempt=3, mortal=Mortal(), moves=moves)
    assert (again.failure, again.transactions, again.already_applied) == (None, 0, 7)
    assert everything(new) == after
