"""Metrics of pipelines for Prometheus: `exposition` writes them, `serve` answers `/metrics`; see docs/monitoring.md.

Needs the extra `web`.
"""

from __future__ import annotations

from penstock.errors import ConfigError

try:
    import prometheus_client as _  # noqa: F401  # only whether it is there
except ImportError as exc:
    raise ConfigError(f"metrics need {exc.name}, which is not installed", do="pip install 'penstock[web]'") from exc

from penstock.metrics.address import Address
from penstock.metrics.exposition import CONTENT_TYPE, exposition
from penstock.metrics.run_metrics import RunMetrics
from penstock.metrics.sample import PipelineSample, sample
from penstock.metrics.server import serving

__all__ = ["CONTENT_TYPE", "Address", "PipelineSample", "RunMetrics", "exposition", "sample", "serving"]
