"""The text of all metrics, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from penstock.metrics.of_run import run_families
from penstock.metrics.of_status import status_families
from penstock.metrics.run_metrics import RunMetrics
from penstock.metrics.sample import PipelineSample

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""The content type of what `exposition` returns."""


def exposition(samples: Iterable[PipelineSample], runs: Iterable[RunMetrics] = ()) -> bytes:
    """Return the metrics of several pipelines, and of the runs of this process, in Prometheus' text format.

    Args:
        samples: One for each pipeline; of two with the same name the last one counts.
        runs: What runs in this process have counted; each has its pipeline's name as a label.
    """
    by_name = {one.pipeline: one for one in samples}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(list(by_name.values()), list(runs)))
    return generate_latest(registry)


class _Families(Collector):
    """What the client asks for metrics; it has made them already."""

    def __init__(self, samples: list[PipelineSample], runs: list[RunMetrics]) -> None:
        self._samples = samples
        self._runs = runs

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from status_families(self._samples)
        if self._runs:
            yield from run_families(self._runs)
