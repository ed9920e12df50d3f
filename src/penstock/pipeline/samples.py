"""What a pipeline's status was, time after time: lag and throughput to look at and to draw."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from io import BytesIO
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock import html
from penstock.errors import OperatorError, RetryableError
from penstock.pipeline.status import Status

if TYPE_CHECKING:
    import pandas as pd

_COLOUR = "#00796b"


@dataclass(frozen=True)
class StatusSample:
    """A status at one moment; a lag of None is not known."""

    at: datetime
    lag_s: float | None
    backlog_changes: int
    transactions: int
    changes: int
    errors: int

    @classmethod
    def of(cls, status: Status, at: datetime) -> StatusSample:
        """What of a status is drawn."""
        return cls(
            at, status.lag_s, status.backlog_changes, status.transactions, status.changes, status.errors + status.held
        )


@dataclass(frozen=True)
class Plot:
    """A drawing of matplotlib's, which a notebook shows.

    Attributes:
        axes: Matplotlib's, for titles and lines of your own.
    """

    axes: Any

    @classmethod
    def of(cls, title: str, unit: str) -> Plot:
        """An empty drawing over time, in a figure that pyplot does not keep."""
        try:
            from matplotlib import dates
            from matplotlib.figure import Figure
        except ImportError as exc:
            raise OperatorError("matplotlib is not installed", do="pip install 'penstock[notebook]'") from exc
        axes = Figure(figsize=(8, 2.6), layout="constrained").add_subplot()
        axes.set_title(title, loc="left")
        axes.set_ylabel(unit)
        concise: Any = dates.ConciseDateFormatter
        axes.xaxis.set_major_formatter(concise(axes.xaxis.get_major_locator()))
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        return cls(axes)

    def save(self, path: str) -> None:
        """Write it to a file, whose ending says the format."""
        self.axes.figure.savefig(path)

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        self.axes.figure.savefig(picture, format="png", dpi=100)
        return picture.getvalue()


class StatusSamples:
    """The samples of a stretch of time, the oldest first.

    As a context manager it takes them in a thread of its own until the block ends; a moment at which a server was out
    of reach has none.
    """

    def __init__(self, look: Callable[[], Status], *, every_s: float = 1.0) -> None:
        """Ask `look` every so many seconds; not yet."""
        self._look = look
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._found: list[StatusSample] = []

    def __enter__(self) -> StatusSamples:
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, name="penstock samples", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def take_for(self, seconds: float) -> StatusSamples:
        """Take samples for so many seconds, and return these."""
        end = time.monotonic() + seconds
        while True:
            self.take()
            if time.monotonic() + self._every_s > end:
                return self
            time.sleep(self._every_s)

    def take(self) -> None:
        """Take one sample now; none while a server is out of reach."""
        try:
            status = self._look()
        except RetryableError:
            # The next one is taken when it is back; a gap in the curve says that it was away.
            return
        self._found.append(StatusSample.of(status, datetime.now(UTC)))

    @property
    def samples(self) -> list[StatusSample]:
        """Those that were taken so far."""
        return list(self._found)

    def to_pandas(self) -> pd.DataFrame:
        """One row a sample, by time."""
        import pandas as pd

        names = list(StatusSample.__dataclass_fields__)
        return pd.DataFrame([asdict(one) for one in self._found], columns=names).set_index("at")

    def plot_lag(self) -> Plot:
        """Draw the lag in seconds over time.

        Raises:
            OperatorError: matplotlib is not installed.
        """
        plot = Plot.of("lag", "seconds")
        lags = [float("nan") if one.lag_s is None else one.lag_s for one in self._found]
        plot.axes.plot([one.at for one in self._found], lags, color=_COLOUR)
        plot.axes.set_ylim(bottom=0)
        return plot

    def plot_throughput(self) -> Plot:
        """Draw the applied changes a second over time. Raises as `plot_lag` does."""
        plot = Plot.of("applied", "changes a second")
        rates = self.throughput()
        plot.axes.step([at for at, _ in rates], [rate for _, rate in rates], where="pre", color=_COLOUR)
        plot.axes.set_ylim(bottom=0)
        return plot

    def throughput(self) -> list[tuple[datetime, float]]:
        """Changes a second that were applied between each sample and the one before it, by the later one's time."""
        found = []
        for before, after in zip(self._found, self._found[1:], strict=False):
            took_s = (after.at - before.at).total_seconds()
            found.append((after.at, (after.changes - before.changes) / took_s if took_s > 0 else 0.0))
        return found

    def _repr_html_(self) -> str:
        heads = list(StatusSample.__dataclass_fields__)
        rows = [[one.at.isoformat(timespec="seconds"), *list(asdict(one).values())[1:]] for one in self._found]
        return html.table(heads, rows)

    def _work(self) -> None:
        while True:
            self.take()
            if self._stop.wait(self._every_s):
                self.take()
                return
