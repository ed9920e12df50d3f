"""The part `capture.log` of a pipeline file: the disk that a log at the source may take."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, model_validator

from penstock.config.parts import ConfigPart


class LogConfig(ConfigPart):
    """How much of the source's disk the log may take, and for how long, before somebody is told."""

    warn_gb: float = Field(default=10, gt=0, description="`status` and a run say who keeps more gigabytes of the log")
    warn_hours: float = Field(default=24, gt=0, description="They say who keeps the log for more hours")
    give_up_gb: float | None = Field(
        default=None,
        gt=0,
        description="A consumer that keeps more gigabytes loses its place: the log is kept for it no more, and goes"
        " with the last one, before the disk is full; it needs a new first copy",
    )

    @model_validator(mode="after")
    def _warns_first(self) -> LogConfig:
        if self.give_up_gb is not None and self.give_up_gb <= self.warn_gb:
            raise ValueError("give_up_gb must be more than warn_gb, so that the warning comes first")
        return self

    @property
    def warn_bytes(self) -> int:
        """`warn_gb` in bytes."""
        return round(self.warn_gb * 1e9)

    @property
    def warn_age(self) -> timedelta:
        """`warn_hours` as a time."""
        return timedelta(hours=self.warn_hours)

    @property
    def give_up_bytes(self) -> int | None:
        """`give_up_gb` in bytes."""
        return None if self.give_up_gb is None else round(self.give_up_gb * 1e9)
