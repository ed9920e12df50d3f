"""How much of its limits a run has used up."""

from __future__ import annotations

import math
import time

from penstock.apply.parameters import Parameters


class Limits:
    """Counts transactions, and the time, since a run began or reached a limit last."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._transactions = 0

    def count(self, transactions: int) -> None:
        """So many more transactions are applied, or in the error queue."""
        self._transactions += transactions

    def restart(self) -> None:
        """Begin to count anew."""
        self._began, self._transactions = time.monotonic(), 0

    def reached(self, parameters: Parameters) -> str | None:
        """Say which limit is reached; None if none is."""
        if self.transactions_left(parameters) == 0:
            return f"it had reached transaction_limit {parameters.transaction_limit}"
        if self.seconds_left(parameters) == 0:
            return f"it had reached time_limit {parameters.time_limit}"
        return None

    def transactions_left(self, parameters: Parameters) -> int | None:
        """How many more there may be; None if as many as there are."""
        most = parameters.transaction_limit
        return None if most is None else max(0, most - self._transactions)

    def seconds_left(self, parameters: Parameters) -> float:
        """How much longer it may take."""
        most = parameters.time_limit
        return math.inf if most is None else max(0.0, self._began + most - time.monotonic())
