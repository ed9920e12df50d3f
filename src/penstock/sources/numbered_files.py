"""Names of files that are read in their order: whether one is missing, or the order is not that of their numbers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from penstock.errors import OperatorError
from penstock.history import RESYNC

_NUMBERED = re.compile(r"(\D*)(\d+)(\.[a-z]+)")

_PUBLISHED = re.compile(r"[0-9]{20}\.(?:jsonl|xml)")
"""What Penstock calls the files that it publishes, from 1 on."""

_DIGITS = re.compile(r"[0-9]+")


def refuse_gaps(names: Sequence[str], where: str) -> None:
    """Make sure that no file is missing in the middle of those that are numbered.

    Dates are numbers too, and have gaps: a series has no digits before its numbers, and begins at 0 or 1, or most of
    its numbers follow each other.

    Args:
        names: In the order in which the files are read.

    Raises:
        OperatorError: One is missing.
    """
    if names and _PUBLISHED.fullmatch(names[0]) and int(names[0][:20]) > 1:
        raise OperatorError(
            f"the first file is {names[0]}: those before it, which Penstock has published, are missing",
            where=where,
            do="add them: they hold the rows of the first copy, or changes",
        )
    series: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        if (found := _NUMBERED.fullmatch(name)) is not None:
            series[found[1], found[3]].append((int(found[2]), name))
    for files in series.values():
        files.sort()
        gaps = [(a, b) for a, b in pairwise(files) if b[0] > a[0] + 1]
        if gaps and (files[0][0] <= 1 or 2 * len(gaps) < len(files)):
            (number, before), (_, after) = gaps[0]
            raise OperatorError(
                f"between file {before} and file {after} number {number + 1} is missing",
                where=where,
                do="add it: files are read in the order of their names, and none is read later",
            )


def refuse_other_order(names: Sequence[str], where: str) -> None:
    """Make sure that the order of names is that of the numbers in them: `t-10` comes before `t-9`.

    Raises:
        OperatorError: It is another one.
    """
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in names:
        alike[tuple(_DIGITS.split(name))].append(name)
    for series in alike.values():
        counted = sorted(series, key=_numbers)
        for name, numbered in zip(series, counted, strict=True):
            if _numbers(name) != _numbers(numbered):
                raise OperatorError(
                    f"file {name} would be read before file {numbered}, by the order of their names, and is numbered"
                    " after it",
                    where=where,
                    do="write all numbers with equally many digits, 0009 and 0010; what was read in another order"
                    f" before has to be read anew: {RESYNC}",
                )


def _numbers(name: str) -> list[int]:
    return [int(number) for number in _DIGITS.findall(name)]
