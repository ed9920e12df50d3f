"""What can be set about an apply process: by the pipeline file, and by `penstock apply set` while it runs.

Every parameter has a name, a text form and a default. What was set stands in the ledger, as texts, and comes before the
file; see `Parameters.with_set`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.position import Scn
from penstock.text import nearest

INFINITE: Final = "INFINITE"
"""The text of a limit that there is not."""

MOST = 4_294_967_295
"""The highest integer that a parameter takes."""


class CommitSerialization(StrEnum):
    """Which transactions must commit at the target in the source's order."""

    FULL = "FULL"
    DEPENDENT_TRANSACTIONS = "DEPENDENT_TRANSACTIONS"


class OnBadRow(StrEnum):
    """What becomes of a row of the first copy that the target refuses."""

    STOP = "stop"
    """The copy ends, and names it."""
    PUT_ASIDE = "put_aside"
    """It goes to the error queue, and the rest is copied."""


@dataclass(frozen=True)
class Parameters:
    """How an apply process works.

    Attributes:
        parallelism: Apply servers at work side by side, at most.
        disable_on_error: Stop after the first transaction that goes to the error queue.
        max_errors: Stop once a run has put so many transactions into the error queue; None: never.
        allow_duplicate_rows: Where several rows are equal in every column, change one of them.
        maximum_scn: Stop before the first transaction at this position or behind it; None: never.
        time_limit: Stop after so many seconds; None: never.
        transaction_limit: Stop after so many transactions, those in the error queue included; None: never.
        disable_on_limit: Stop for good at one of the last two; otherwise only their counts begin anew.
        ignore_transaction: Ids of transactions at the source that are not applied, and count as applied.
        startup_seconds: How long a run waits for another one of the process to end; None: for ever.
        trace_level: From 1 on every batch is logged.
        txn_lcr_spill_threshold: A large transaction, which is not held in memory, has more changes; None: only its size
            decides.
    """

    parallelism: int = 2
    commit_serialization: CommitSerialization = CommitSerialization.DEPENDENT_TRANSACTIONS
    disable_on_error: bool = False
    max_errors: int | None = None
    allow_duplicate_rows: bool = True
    maximum_scn: Scn | None = None
    time_limit: int | None = None
    transaction_limit: int | None = None
    disable_on_limit: bool = False
    ignore_transaction: frozenset[str] = field(default_factory=frozenset)
    startup_seconds: int | None = 0
    trace_level: int = 0
    txn_lcr_spill_threshold: int | None = 200_000

    @property
    def lanes(self) -> int:
        """How many lanes a batch may have: one, where all transactions commit in order."""
        return 1 if self.commit_serialization is CommitSerialization.FULL else self.parallelism

    def with_set(self, texts: Mapping[str, str]) -> Parameters:
        """The same, but for what was set. Transactions to ignore add up.

        Args:
            texts: By name, as `text_to_keep` makes them.
        """
        known = {name: _read(name, text) for name, text in texts.items() if name in _READERS}
        if IGNORED in known:
            known[IGNORED] |= self.ignore_transaction
        return replace(self, **known)

    def texts(self) -> dict[str, str]:
        """All parameters as they are written, by name; ids one behind the other."""
        return {one.name: _written(getattr(self, one.name)) for one in fields(self)}


IGNORED = "ignore_transaction"
"""The parameter that is a list."""


def canonical_name(name: str) -> str:
    """Return the name of a parameter, whose case means nothing.

    Raises:
        ConfigError: There is none of this name.
    """
    if name.lower() not in _READERS:
        raise ConfigError(
            f"there is no parameter {name!r}{nearest(name.lower(), _READERS)}", do="`penstock apply show` lists them"
        )
    return name.lower()


def text_to_keep(name: str, text: str, kept: str | None) -> str:
    """Return what the ledger is to keep of a parameter that a person has set; an id adds to those that are `kept`.

    Raises:
        ConfigError: The parameter does not take it.
    """
    if name == IGNORED:
        if not text.strip():
            raise ConfigError(f"{name}: names no transaction")
        return json.dumps(sorted({*json.loads(kept or "[]"), text.strip()}))
    return _written(_read(name, text))


def _read(name: str, text: str) -> Any:
    try:
        return _READERS[name](text.strip())
    except ValueError as exc:
        raise ConfigError(f"{name}: must be {exc}, not {text!r}") from None


def _written(value: Any) -> str:
    match value:
        case None:
            return INFINITE
        case bool():
            return "Y" if value else "N"
        case frozenset():
            return " ".join(sorted(value))
        case _:
            return str(value)


def _integer(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise ValueError(f"an integer from {least} to {most}")
        return int(text)

    return read


def _limit(least: int, most: int = MOST) -> Callable[[str], int | None]:
    def read(text: str) -> int | None:
        try:
            return None if text.upper() == INFINITE else _integer(least, most)(text)
        except ValueError as exc:
            raise ValueError(f"{exc}, or {INFINITE}") from None

    return read


def _boolean(text: str) -> bool:
    known = {"Y": True, "TRUE": True, "N": False, "FALSE": False}
    if text.upper() not in known:
        raise ValueError("Y or N")
    return known[text.upper()]


def _serialization(text: str) -> CommitSerialization:
    if text.upper() == "NONE":
        # What it was called once.
        return CommitSerialization.DEPENDENT_TRANSACTIONS
    if text.upper() not in list(CommitSerialization):
        raise ValueError(" or ".join(CommitSerialization))
    return CommitSerialization(text.upper())


_READERS: Mapping[str, Callable[[str], Any]] = {
    "parallelism": _integer(1, 64),
    "commit_serialization": _serialization,
    "disable_on_error": _boolean,
    "max_errors": _limit(1),
    "allow_duplicate_rows": _boolean,
    "maximum_scn": _limit(1, 2**63 - 1),
    "time_limit": _limit(1),
    "transaction_limit": _limit(1),
    "disable_on_limit": _boolean,
    IGNORED: lambda text: frozenset(json.loads(text)),
    "startup_seconds": _limit(0),
    "trace_level": _integer(0, MOST),
    "txn_lcr_spill_threshold": _limit(1),
}
