"""The only file that knows every concrete class: which database is which folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.config import PipelineConfig
from penstock.dialects.postgres.sides import PostgresSourceSide, PostgresTargetSide
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.sides import SourceSide, TargetSide
from penstock.spark.session import start_session

_SOURCES: Mapping[str, Callable[[str, str], SourceSide]] = {"postgres": PostgresSourceSide}
_TARGETS: Mapping[str, Callable[[str, str], TargetSide]] = {"postgres": PostgresTargetSide}


def open_pipeline(config: PipelineConfig) -> Pipeline:
    """Put a pipeline file to work; nothing is connected to yet."""
    source = config.connections[config.capture.connection]
    target = config.connections[config.apply.connection]
    return Pipeline(
        config,
        _SOURCES[source.type](source.url, config.name),
        _TARGETS[target.type](target.url, config.name),
        lambda: start_session(f"penstock {config.name}", lanes=config.apply.parallelism),
    )
