"""What `apply.process.Ledger` promises of an output: all of it once, whichever runs die and whichever wake up again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from penstock.apply.ledger import ProcessState, ProcessStatus
from penstock.config.publish import FilesFormat, KafkaFormat
from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import FencedError, OperatorError, RetryableError
from penstock.history import CaptureOrigin, Joined
from penstock.pipeline.published_copies import PublishedCopies
from penstock.position import START, Anchor, Scn
from penstock.sinks.events.state import OpenPublishedCopy
from penstock.wiring import sinks
from tests.contracts.mortal import Died, Dying, Mortal
from tests.contracts.outputs import OUTPUTS, TABLE, Output, Place, Records, Row
from tests.hand_made import T, as_batch, insert

BATCHES = (
    [T(3, insert("entry", at=1, body="a")), T(4, insert("entry", at=2, body=None), insert("entry", at=3, body='"'))],
    [T(9, insert("entry", at=4, body="é"))],
    [T(12, *(insert("entry", at=n, body="x") for n in range(5, 9)))],
)

ROWS: list[list[Row]] = [
    [(str(change.after["at"]), change.after["body"]) for txn in batch for change in txn.changes if change.after]
    for batch in BATCHES
]

EVERYTHING = [row for batch in ROWS for row in batch]

JOINED = Joined(CaptureOrigin("set", "server/database/schema"), START, Anchor(START, "m0"))


@pytest.fixture(params=OUTPUTS)
def output(request: pytest.FixtureRequest, target_server: EmbeddedPostgres, tmp_path: Path) -> Iterator[Output]:
    place = Place(target_server, tmp_path, lambda: request.getfixturevalue("kafka"))
    with OUTPUTS[request.param](place) as made:
        yield made


def run(output: Output, mortal: Mortal | None = None) -> ProcessState:
    """Do what a run does: join, then batch after batch from where the ledger stands; returns where it stood first."""
    mortal = mortal or Mortal()
    opened = output.ledger()
    ledger: Any = Dying(opened, mortal)
    try:
        began = ledger.acquire("DBS1", lanes=1)
        state = ledger.adopt(JOINED) if began.history.origin is None else began
        for batch in BATCHES:
            if batch[-1].scn > state.low_watermark:
                end = Scn(batch[-1].scn)
                mortal.step(lambda part=as_batch(batch): output.write(opened, state.epoch, part))
                ledger.confirm()
                ledger.complete(end, datetime.now(UTC), Anchor(end, f"m{end}"))
        ledger.note_idle(datetime.now(UTC))
        ledger.set_status(ProcessStatus.DISABLED, "told to stop")
    finally:
        opened.close()
    return began


def test_every_form_that_can_be_published_is_asked() -> None:
    forms = {*get_args(FilesFormat), *get_args(KafkaFormat)}
    # Documents of events have no ledger beside them: the journal of their log says which were delivered.
    forms.remove("xds")
    published = {name.removeprefix("publish ") for name in OUTPUTS if name.startswith("publish ")}
    assert {name.partition(" ")[2] for name in published} == forms
    assert set(sinks.FOLDER_SINKS) == {form for form in forms if not form.startswith(("debezium", "dbwatcher"))}


def test_a_run_goes_on_where_the_last_one_stood(output: Output) -> None:
    first, second = run(output), run(output)

    assert output.rows() == EVERYTHING
    assert (first.low_watermark, first.history.origin) == (START, None)
    assert second.epoch > first.epoch
    assert (second.low_watermark, second.high_watermark) == (12, 12)
    assert (second.transactions, second.changes) == (4, 8)
    assert (second.history.origin, second.history.anchor) == (JOINED.origin, Anchor(Scn(12), "m12"))
    assert second.history.newest == Anchor(Scn(12), "m12")
    assert not second.history.is_new


def test_a_run_that_dies_between_any_two_calls_loses_and_doubles_nothing(output: Output) -> None:
    deaths = 0
    while True:
        try:
            run(output, Mortal.nth(deaths))
        except Died:
            deaths += 1
        else:
            break
        # Batches follow each other; of none a part is seen.
        assert len(output.rows()) in (0, 3, 4, 8)
        assert output.rows() == EVERYTHING[: len(output.rows())]

    assert deaths >= 5
    assert output.rows() == EVERYTHING


def test_a_run_that_was_replaced_changes_nothing_whenever_it_wakes_up(output: Output) -> None:
    zombie: Any = output.ledger()
    old = zombie.acquire("DBS1", lanes=1)
    zombie.adopt(JOINED)
    output.write(zombie, old.epoch, as_batch(BATCHES[0]))
    zombie.complete(Scn(4), None, Anchor(Scn(4), "m4"))
    output.lose(zombie)
    after: Any = output.ledger()
    state = after.acquire("DBS1", lanes=1)
    assert (state.low_watermark, state.history.origin) == (4, JOINED.origin)

    def wake_up() -> None:
        output.write(zombie, old.epoch, as_batch(BATCHES[1]))

    def complete() -> None:
        zombie.complete(Scn(9), None, Anchor(Scn(9), "m9"))

    for act in (wake_up, complete, zombie.confirm):
        for _ in range(2):
            try:
                act()
            except (FencedError, RetryableError):
                # A session that was lost is noticed first.
                pass
            else:
                # Files may be written, but nothing of them is seen.
                assert act is wake_up
            assert output.rows() == ROWS[0]
    with pytest.raises(FencedError):
        zombie.confirm()
    after.confirm()
    output.write(after, state.epoch, as_batch(BATCHES[1]))
    after.complete(Scn(9), None, Anchor(Scn(9), "m9"))
    assert output.rows() == ROWS[0] + ROWS[1]
    for ledger in (zombie, after):
        ledger.close()


def test_an_output_keeps_its_source_and_its_queue_is_empty(output: Output) -> None:
    run(output)
    ledger = output.ledger()
    with pytest.raises(OperatorError, match="DBS1"):
        ledger.acquire("another", lanes=1)
    ledger.acquire("DBS1", lanes=1)
    assert (list(ledger.newly_queued()), ledger.queue_state().total) == ([], 0)
    ledger.close()


@pytest.mark.parametrize(
    "output", [name for name in OUTPUTS if "debezium" in name or "dbwatcher" in name], indirect=True
)
def test_a_request_between_two_batches_is_kept_and_costs_nothing_that_is_published(output: Output) -> None:
    assert isinstance(output, Records)
    requests = PublishedCopies(output.log, output.form)
    opened: Any = output.ledger()
    opened.acquire("DBS1", lanes=1)
    state = opened.adopt(JOINED)
    copy = OpenPublishedCopy("c", Anchor(START, "m0"), "s", 0, {TABLE: 1}, is_first=True, chunks=0)
    opened.write(opened.published_state.with_copied(copy), *copy.ended())
    output.write(opened, state.epoch, as_batch(BATCHES[0]))

    asked = requests.request(["public.entry"], {TABLE: 1})
    with pytest.raises(OperatorError, match="matches no table"):
        requests.request(["public.none"], {TABLE: 1})

    # As Spark does with a task that has met another publisher.
    with suppress(RetryableError):
        output.write(opened, state.epoch, as_batch(BATCHES[1]))
    opened.close()
    run(output)
    assert output.rows() == EVERYTHING
    assert list(asked.requested) == [TABLE]
    assert output.log.published_state().requested.keys() == {TABLE}
    assert list(requests.cancel(["public.*"], [TABLE]).withdrawn) == [TABLE]
    assert output.log.published_state().is_copied(1, TABLE)
