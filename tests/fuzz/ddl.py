"""Random DDL and DML by random roles, with capture and without: `python -m tests.fuzz.ddl --minutes 10`.

A round makes databases, and statements for them until something differs or `--steps` are done. What differs is made
smaller by leaving steps out, and printed as statements together with the command that does it again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.demo.servers import EmbeddedPostgres
from tests.fuzz.shape import Shape
from tests.fuzz.statements import Statements
from tests.fuzz.world import SESSIONS, SYNC, Failure, RoundOver, Step, World, anonymous, fuzz_server

_EXCUSES = ("error queue", "apply", "setup", "start")


@dataclass
class Found:
    """A failure, and the steps that led to it."""

    failure: Failure
    steps: list[Step]
    seed: int
    is_superuser: bool

    def report(self) -> str:
        """What a person needs to see it again."""
        lines = [f"-- {self.failure.kind}", *(f"-- {line}" for line in self.failure.text.splitlines())]
        for step in self.steps:
            who = SESSIONS[step.session] + str(step.session) if step.session >= 0 else "sync"
            lines.append(f"{f'/* {who} */':<20}{step.sql};")
        mode = "superuser" if self.is_superuser else "plain"
        lines.append(f"-- again: python -m tests.fuzz.ddl --{mode} --seed {self.seed} --rounds 1")
        return "\n".join(lines)


@dataclass
class Totals:
    """What the rounds came to."""

    rounds: int = 0
    whole_rounds: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    loud: Counter[str] = field(default_factory=Counter)
    over: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def excuses(self) -> dict[str, int]:
        """What Penstock could not do and said so, for which the copy was not compared."""
        return {what: number for what, number in self.loud.items() if what.startswith(_EXCUSES)}

    def report(self) -> str:
        """A table."""
        done, refused = self.steps["done"], self.steps["refused"]
        lines = [
            f"{self.rounds} rounds, {self.whole_rounds} to their end; {done} statements done, {refused} refused by both"
        ]
        lines += [f"{number:>6}  {what}" for what, number in self.loud.most_common(40)]
        return "\n".join(lines)


def play_round(
    server: EmbeddedPostgres,
    seed: int,
    *,
    is_superuser: bool,
    steps: int,
    totals: Totals,
    with_schemas: bool = True,
) -> Found | None:
    """Play one round; returns what went wrong. `with_schemas` ends it with a comparison of both schemas."""
    made: list[Step] = []
    statements = Statements(random.Random(seed), is_superuser=is_superuser)
    totals.rounds += 1
    with World(server, is_superuser=is_superuser, loud=totals.loud) as world:

        def take(step: Step) -> None:
            made.append(step)
            outcome = world.take(step)
            totals.steps["done" if outcome.sqlstate is None else "refused"] += 1
            if outcome.sqlstate is not None:
                totals.refused[anonymous(f"{outcome.sqlstate} {outcome.message}")] += 1
                for after in statements.refused(step):
                    take(after)

        try:
            for step in statements.opening():
                take(step)
            take(SYNC)
            while len(made) < steps:
                statements.shape = Shape.read(world.b)
                for step in statements.next():
                    take(step)
            take(SYNC)
            if is_superuser and with_schemas:
                # Another role may not make all that is told.
                world.compare_schemas()
            totals.whole_rounds += 1
        except Failure as failure:
            return Found(failure, made, seed, is_superuser)
        except RoundOver as over:
            totals.over[str(over)[:200]] += 1
    return None


def play_again(server: EmbeddedPostgres, steps: Sequence[Step], *, is_superuser: bool) -> Failure | None:
    """Carry out given steps in new databases."""
    with World(server, is_superuser=is_superuser) as world:
        try:
            for step in steps:
                world.take(step)
        except Failure as failure:
            return failure
        except RoundOver:
            return None
    return None


def shrink(server: EmbeddedPostgres, found: Found, *, seconds: float) -> Found:
    """Leave out as many steps as time allows, so that the same thing still goes wrong."""
    until = time.monotonic() + seconds
    best = found

    def goes_wrong(steps: Sequence[Step]) -> Failure | None:
        failure = play_again(server, steps, is_superuser=found.is_superuser)
        return failure if failure is not None and failure.kind == found.failure.kind else None

    def attempt(steps: list[Step]) -> bool:
        nonlocal best
        if len(steps) == len(best.steps) or time.monotonic() > until:
            return False
        failure = goes_wrong(steps)
        if failure is not None:
            best = Found(failure, steps, found.seed, found.is_superuser)
        return failure is not None

    first_sync = best.steps.index(SYNC)
    head, rest, last = best.steps[: first_sync + 1], best.steps[first_sync + 1 : -1], best.steps[-1:]
    for is_kept in (lambda s: s.is_ddl, lambda s: s.session == last[0].session, lambda s: s.session >= 0):
        if attempt([*head, *filter(is_kept, rest), *last]):
            break
    size = max(1, len(best.steps) // 2)
    while time.monotonic() < until:
        place, has_shrunk = len(best.steps) - 1 - size, False
        # The last step is the one that shows it.
        while place > -size and time.monotonic() < until:
            has_shrunk |= attempt(best.steps[: max(0, place)] + best.steps[place + size :])
            place -= size
        if size == 1 and not has_shrunk:
            break
        size = max(1, size // 2)
    return best


def main(arguments: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Play rounds; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.ddl", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=0, help="so many rounds, however long they take")
    parser.add_argument("--steps", type=int, default=90, help="statements of a round")
    parser.add_argument("--seed", type=int, default=None, help="of the first round; the next ones count on from it")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--plain", action="store_true", help="only with capture set up by the tables' owner")
    who.add_argument("--superuser", action="store_true", help="only with capture set up by a superuser")
    parser.add_argument("--shrink", type=float, default=60, help="most seconds to make a failure smaller")
    parser.add_argument("--replay", type=Path, help="play the steps in this file, which --out wrote")
    parser.add_argument("--out", type=Path, help="write the steps of each failure to this folder")
    parser.add_argument("--keep-going", action="store_true", help="count failures, and stop for none")
    parser.add_argument("--loud", action="store_true", help="say why rounds ended early, and statements were refused")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    until = time.monotonic() + given.minutes * 60
    totals, failures = Totals(), Counter[str]()
    with fuzz_server() as server:
        if given.replay:
            kept = json.loads(given.replay.read_text())
            steps = [Step(**step) for step in kept["steps"]]
            failure = play_again(server, steps, is_superuser=kept["is_superuser"])
            say(Found(failure, steps, kept["seed"], kept["is_superuser"]).report() if failure else "nothing goes wrong")
            return 1 if failure else 0
        number = 0
        while number < given.rounds if given.rounds else time.monotonic() < until:
            is_superuser = given.superuser or (not given.plain and number % 2 == 0)
            found = play_round(server, seed + number, is_superuser=is_superuser, steps=given.steps, totals=totals)
            number += 1
            if found is None:
                continue
            failures[found.failure.kind] += 1
            if failures[found.failure.kind] == 1:
                found = shrink(server, found, seconds=given.shrink)
                say(f"{found.report()}\n")
                if given.out:
                    given.out.mkdir(parents=True, exist_ok=True)
                    kept = {
                        "steps": [s.as_dict() for s in found.steps],
                        "seed": found.seed,
                        "is_superuser": is_superuser,
                    }
                    (given.out / f"{found.seed}.json").write_text(json.dumps(kept, indent=1))
            if not given.keep_going:
                break
    say(totals.report())
    if given.loud:
        for why, times in totals.over.most_common():
            say(f"over {times}: {why}")
        for why, times in totals.refused.most_common(30):
            say(f"refused by both {times}: {why}")
    for kind, times in failures.most_common():
        say(f"FAILED {times} times: {kind}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
