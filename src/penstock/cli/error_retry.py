"""Entries of the error queue that are applied again: what is said of each, and of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.console import print_json, say_wrapped, warn
from penstock.errors import PenstockError
from penstock.text import count, printable

if TYPE_CHECKING:
    from penstock.apply.retry import Retried, RetryOptions
    from penstock.pipeline.pipeline import Pipeline
    from penstock.pipeline.publication import Publication

_GOOD = ("applied", "would apply")


def apply_entries(
    pipeline: Pipeline | Publication,
    chosen: Sequence[str],
    options: RetryOptions,
    *,
    json: bool,
    skip_gone: bool = False,
) -> None:
    """Apply entries, and say what came of them: also when one fails, since those before it have left the queue."""
    from penstock.pipeline.error_sums import AlikeNotes, kind_of_failure

    dry_run = options.get("dry_run", False)
    done: list[Retried] = []
    notes = AlikeNotes(lambda text: warn(f"note: {printable(text)}"))
    told: set[str] = set()
    try:
        for retried in pipeline.retry(chosen, notes.add, skip_gone=skip_gone, **options):
            done.append(retried)
            # Of those that fail alike the first is told; the sum counts them.
            kind = kind_of_failure(retried) if retried.is_failed else None
            if not json and kind not in told:
                say_outcome(retried, is_last_word=dry_run or options.get("go_on", False))
            told |= {kind} if kind is not None else set()
    except PenstockError:
        notes.close()
        # Of what was refused before anything was tried, the error says all that there is to say.
        if done or json:
            _sum_up(done, dry_run=dry_run, json=json)
        raise
    notes.close()
    _sum_up(done, dry_run=dry_run, json=json)
    failed = [one for one in done if one.is_failed]
    if failed:
        raise typer.Exit(3)


def _sum_up(done: Sequence[Retried], *, dry_run: bool, json: bool) -> None:
    from penstock.pipeline.error_sums import failures_in_short

    if json:
        print_json(as_json(done, dry_run=dry_run))
    else:
        failed = [one for one in done if one.is_failed]
        fail = "would fail" if dry_run else "failed again"
        applied = [one for one in done if not one.is_failed and one.outcome in _GOOD]
        would = "would apply" if dry_run else "applied"
        waited = sum(one.has_gone_on for one in applied)
        say_wrapped(
            f"{would} {count(len(applied), 'transaction')} from the error queue"
            + (f", of which {waited} had waited" if waited else "")
            + (f"; {len(failed):,} {fail} ({failures_in_short(failed)})" if failed else "")
        )


def say_outcome(retried: Retried, *, is_last_word: bool) -> None:
    """Say of an entry what the sum at the end does not say."""
    if retried.outcome == "gone":
        warn(f"note: {retried.entry_id}: another session has applied or deleted it meanwhile")
    elif retried.has_gone_on:
        reason = f": {printable(str(retried.error))}" if retried.error is not None else ""
        say_wrapped(f"{retried.entry_id}, which had waited: {retried.outcome}{reason}")
    elif retried.error is None and retried.edits:
        places = ", ".join(map(printable, retried.edits))
        say_wrapped(f"{retried.entry_id}: {retried.outcome}; edited, or left out: {places}")
    elif is_last_word:
        reason = f": {printable(str(retried.error))}" if retried.error is not None else ""
        say_wrapped(f"{retried.entry_id}: {retried.outcome}{reason}")


def as_json(done: Sequence[Retried], *, dry_run: bool = False) -> dict[str, Any]:
    """What came of entries as plain data."""
    good, bad = ("would_apply", "would_fail") if dry_run else ("applied", "failed")
    return {
        good: [one.entry_id for one in done if one.outcome in _GOOD],
        bad: [_failure(one) for one in done if one.is_failed and one.outcome != "held"],
        "held": [one.entry_id for one in done if one.outcome == "held"],
        "went_on": [one.entry_id for one in done if one.has_gone_on],
        "gone": [one.entry_id for one in done if one.outcome == "gone"],
        "edits": {one.entry_id: list(one.edits) for one in done if one.edits},
    }


def _failure(retried: Retried) -> dict[str, object]:
    failure = retried.failure
    return {
        "id": retried.entry_id,
        "message_number": failure.message_number if failure is not None else 0,
        "error_number": failure.error.number if failure is not None else None,
        "error_code": failure.error.code if failure is not None else None,
        "error_message": str(failure.error if failure is not None else retried.error),
    }
