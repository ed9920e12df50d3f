"""Penstock captures committed changes and applies them to other databases, transaction by transaction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.pipeline.pipeline import Pipeline
    from penstock.pipeline.publication import Publication

__version__ = "0.1.0"


def open(path: str | Path = "pipeline.yaml", *, master: str | None = None) -> Pipeline | Publication:
    """Open a pipeline file: what the command line does, for programs; see docs/python.md. Nothing is connected to yet.

    Args:
        master: The Spark cluster to use, whatever the file says.

    Raises:
        ConfigError: The file cannot be read or has faults; the message names each with its line.
    """
    # Arrow, Spark and the drivers take half a second to import.
    from penstock.pipeline_file import load
    from penstock.wiring import open_pipeline

    config = load(Path(path))
    return open_pipeline(config if master is None else config.with_master(master))
