"""A pipeline file as a value, and its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from penstock.alerts.config import OnErrorConfig
from penstock.apply.handlers.settings import NO_HANDLERS, HandlerSettings
from penstock.config.apply import ApplyConfig
from penstock.config.capture import CaptureConfig
from penstock.config.connections import ConnectionConfig, KafkaConfig
from penstock.config.parts import ConfigPart, plain_text
from penstock.config.publish import PublishConfig
from penstock.config.rules import RulesConfig

_PUBLISHING_TASKS = 2


class PipelineConfig(ConfigPart):
    """One pipeline."""

    version: Literal[1]
    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]{0,35}$",
        description="Name of the pipeline: lower-case letters, digits and underscores, at most 36, a letter first",
    )
    connections: dict[str, Annotated[ConnectionConfig | KafkaConfig, Field(discriminator="type")]] = Field(min_length=1)
    capture: CaptureConfig
    rules: RulesConfig | None = Field(default=None, description="Which tables are processed, and how they are changed")
    apply: ApplyConfig | None = Field(default=None, description="Where changes are applied")
    publish: PublishConfig | None = Field(default=None, description="Instead of apply: where changes are published")
    on_error: OnErrorConfig | None = Field(
        default=None,
        description="Who is told when a run fails or stops, puts transactions into its error queue, or"
        " when the source's log is held",
    )
    spark: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="Spark's own settings, spark.*; master stands for spark.master"
    )

    @field_validator("spark")
    @classmethod
    def _are_spark_settings(cls, settings: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        for name in settings:
            if name != "master" and not name.startswith("spark."):
                raise ValueError(f"{name!r} is not one of Spark's settings, whose names begin with 'spark.'")
        return settings

    def with_folder(self, folder: Path) -> PipelineConfig:
        """The same pipeline, whose files are kept below a folder unless their path says another place."""
        publish = None if self.publish is None else self.publish.below(folder)
        return self.model_copy(update={"capture": self.capture.below(folder), "publish": publish})

    def with_master(self, master: str) -> PipelineConfig:
        """The same pipeline with another master of Spark's."""
        others = {name: value for name, value in self.spark.items() if name not in ("master", "spark.master")}
        return self.model_copy(update={"spark": {**others, "master": master}})

    @property
    def handlers(self) -> HandlerSettings:
        """What is called for changes; the modules may lie beside the file."""
        if self.apply is None:
            return NO_HANDLERS
        return self.apply.handler_settings(self.capture.name, self.capture.folder.absolute())

    @property
    def parallelism(self) -> int:
        """How many tasks may be at work side by side."""
        return _PUBLISHING_TASKS if self.apply is None else self.apply.parallelism

    @property
    def application_name(self) -> str:
        """What Spark calls a run."""
        return f"penstock {self.name}"

    @property
    def spark_settings(self) -> Mapping[str, str]:
        """Spark's settings, as Spark names and writes them."""
        names = {"master": "spark.master"}
        return {names.get(name, name): plain_text(value) for name, value in self.spark.items()}


def json_schema() -> str:
    """The JSON Schema of a pipeline file, for editors; published as docs/pipeline.schema.json."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:penstock:pipeline-file:1",
        **PipelineConfig.model_json_schema(),
    }
    return json.dumps(schema, indent=2) + "\n"
