"""Histories of inputs, repeated, reordered, cut, renumbered and spliced: `python -m tests.fuzz.histories`.

Whatever was done to what lies there: a transaction that was read is one that a server committed, whole, in its order
and once. If a run comes to the end without an error, it has read all that is whole. Nothing else may happen in silence.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.fuzz.history import Input, Key, Piece, Refused, Result
from tests.fuzz.history_inputs import INPUTS


class Play:
    """One history of an input."""

    def __init__(self, seed: int, make: Callable[[random.Random], Input]) -> None:
        self.chance = random.Random(seed)
        self.input = make(self.chance)
        self.result = Result()
        self.whole: dict[Key, tuple[str, ...]] = {}
        self.needed: Counter[Key] = Counter()
        self.there: list[Piece] = []
        self.read: list[tuple[str, ...]] = []
        self.steps: list[str] = []
        self.others = iter("bcdefgh")

    def play(self) -> Result:
        """Write an honest history in several runs, and go on with one that is not."""
        chance = self.chance
        try:
            honest = [self._transaction("a", n) for n in range(1, chance.randint(3, 12))]
            cut = chance.randint(1, len(honest))
            self._write([piece for one in honest[:cut] for piece in one])
            if chance.random() < 0.8 and not self._run():
                self.result.wrong.append(f"an honest history did not come to its end: {self.steps}")
                return self.result
            self._go_on([list(one) for one in honest[cut:]], cut)
        except Refused as refused:
            self._note(refused.read)
            self.result.outcomes["refused"] += 1
            why = refused.why
            if not why.do or "\n" in why.what:
                self.result.wrong.append(f"no way out is named: {why}")
        finally:
            self.input.close()
        self._judge()
        if self.result.wrong:
            self.result.wrong.append(f"after {', '.join(self.steps)}")
        return self.result

    def _go_on(self, rest: list[list[Piece]], cut: int) -> None:
        chance = self.chance
        pieces = [piece for one in rest for piece in one]
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            pieces = self._mutated(pieces, cut)
        if chance.random() < 0.3 and (damages := self.input.damages()):
            name = chance.choice(sorted(damages))
            self.steps.append(name)
            self.there = list(damages[name](chance))
            # A log that is as long again before anybody looks is another one under the same name: nobody can tell.
            self._run()
        if not pieces:
            at_end = self._run()
        while pieces:
            step = chance.choice([1, 3, len(pieces)])
            self._write(pieces[:step])
            pieces = pieces[step:]
            if not pieces or chance.random() < 0.4:
                at_end = self._run()
        self.result.outcomes["to the end" if at_end else "waits"] += 1
        if at_end:
            self._judge_end()

    def _mutated(self, pieces: list[Piece], cut: int) -> list[Piece]:
        chance = self.chance
        kind = chance.choice(["repeat", "drop", "drop all", "swap", "spoil", "splice", "fail over", "cut off"])
        self.steps.append(kind)
        at = chance.randint(0, len(pieces))
        if kind == "repeat":
            known = [*self.there, *pieces[:at]]
            first = chance.randint(max(0, len(known) - 12), len(known))
            return [*pieces[:at], *known[first : chance.choice([len(known), first + 3])], *pieces[at:]]
        if kind == "splice":
            first = chance.choice([1, cut, cut + 1, 90])
            server = next(self.others)
            others = [self._transaction(server, n, first) for n in range(1, 4)]
            return [*pieces[:at], *(piece for one in others for piece in one), *pieces[at:]]
        if kind == "fail over":
            # The other server has all but the last transactions, and gives out their numbers again.
            keep = [piece for piece in pieces if piece.of[1] <= cut + 1]
            lost = chance.randint(0, 2)
            server = next(self.others)
            others = [self._transaction(server, n, cut + 2 - lost) for n in range(1, 4)]
            return [*keep, *(piece for one in others for piece in one)]
        if not pieces:
            return pieces
        at = chance.randrange(len(pieces))
        if kind == "drop":
            return [*pieces[:at], *pieces[at + 1 :]]
        if kind == "drop all":
            return [piece for piece in pieces if piece.of != pieces[at].of]
        if kind == "cut off":
            return pieces[:at]
        if kind == "spoil":
            return [*pieces[:at], self.input.spoiled(pieces[at], chance), *pieces[at + 1 :]]
        other = min(at + chance.choice([1, 1, 2, 5]), len(pieces) - 1)
        swapped = list(pieces)
        swapped[at], swapped[other] = pieces[other], pieces[at]
        return swapped

    def _transaction(self, server: str, n: int, first: int = 1) -> Sequence[Piece]:
        number = first + n - 1
        values = [f"{server}{number}.{order}.{self.chance.randrange(1000)}" for order in range(self._size())]
        place = number * 1000 + (self.chance.choice([0, 0, 3, 500]) if server != "a" else 0)
        pieces = self.input.transaction(server, number, place, values)
        self.whole.setdefault((server, number), tuple(values))
        self.needed[server, number] = len(pieces)
        return pieces

    def _size(self) -> int:
        return self.chance.choice([1, 1, 2, 3])

    def _write(self, pieces: Sequence[Piece]) -> None:
        self.there += pieces
        self.input.write(pieces)

    def _run(self) -> bool:
        self.steps.append("run")
        read, at_end = self.input.run()
        self._note(read)
        return at_end

    def _note(self, read: Sequence[Sequence[str]]) -> None:
        self.read += [tuple(one) for one in read if one]

    def _judge(self) -> None:
        """Whether what was read was committed so, and once."""
        by_value = {value: key for key, values in self.whole.items() for value in values}
        last: dict[str, int] = {}
        seen: set[Key] = set()
        for one in self.read:
            key = by_value[one[0]]
            if not self._is_of(one, key):
                self.result.wrong.append(f"torn or mixed: {one}")
            elif key in seen:
                self.result.wrong.append(f"twice: {key}")
            elif key[1] < last.get(key[0], 0) and self.input.says_order:
                self.result.wrong.append(f"out of order: {key}")
            seen.add(key)
            last[key[0]] = max(key[1], last.get(key[0], 0))

    def _is_of(self, values: tuple[str, ...], key: Key) -> bool:
        if self.input.has_ends and not self._is_untold_fork(key):
            return values == self.whole[key]
        # Where nothing says what a transaction has, nobody can tell that some of it was taken away, or that it goes on
        # at another server that gives out the same number.
        of_all = [value for (_, number), whole in self.whole.items() if number == key[1] for value in whole]
        return list(values) == [value for value in of_all if value in values]

    def _is_untold_fork(self, key: Key) -> bool:
        if self.input.tells_forks:
            return False
        return any(server != "a" for server, number in self.whole if number == key[1])

    def _judge_end(self) -> None:
        """Whether all that is there as a whole was read."""
        read = {value for one in self.read for value in one}
        numbers: dict[Key, set[int]] = {}
        for piece in self.there:
            numbers.setdefault(piece.of, set()).add(piece.number)
        for piece in self.there:
            is_whole = len(numbers[piece.of]) == self.needed[piece.of]
            if piece.of[1] in self.input.named or piece.of in self.input.overwritten or self._is_untold_fork(piece.of):
                continue
            waits = self.input.has_ends or self.input.waits_for_ends
            if (is_whole or not waits) and not read.issuperset(piece.values):
                self.result.wrong.append(f"left out: {piece.of}")


def played(make: Callable[[random.Random], Input], seed: int) -> Result:
    """One history; an error that is none of ours is wrong, too."""
    play = Play(seed, make)
    try:
        return play.play()
    except Exception as exc:
        return replace(play.result, wrong=[*play.result.wrong, f"{type(exc).__name__}: {exc}, after {play.steps}"])


def main(arguments: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Play histories until the time is up; returns 1 if anything happened in silence."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.histories", description=__doc__)
    parser.add_argument("--input", choices=sorted(INPUTS), default=None, help="of all of them, in turn, by default")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    names = [given.input] if given.input else sorted(INPUTS)
    totals = {name: Result() for name in names}
    for number, name in _turns(names, given.rounds, given.minutes):
        result = played(INPUTS[name], seed + number)
        if result.wrong and len(totals[name].wrong) < 10:
            say(f"again: python -m tests.fuzz.histories --input {name} --rounds 1 --seed {seed + number}")
        totals[name].outcomes += result.outcomes
        totals[name].wrong += result.wrong
    for name, total in totals.items():
        say(f"{name}: {total.report()}")
    return 1 if any(total.wrong for total in totals.values()) else 0


def _turns(names: Sequence[str], rounds: int, minutes: float) -> Iterator[tuple[int, str]]:
    until, number = time.monotonic() + minutes * 60, 0
    while number < rounds if rounds else time.monotonic() < until:
        for name in names:
            yield number, name
        number += 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
