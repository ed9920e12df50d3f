"""What a pipeline file says, as values: each part with its settings, their types and what they mean.

`pipeline` is the whole file, and the other modules are its parts. The settings of a source or a sink, and their checks,
are in a module `config.py` in its own folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.config.pipeline import PipelineConfig

__all__ = ["PipelineConfig"]


def __getattr__(name: str) -> Any:
    # Imported late: the settings of a source import `parts` from here, and a pipeline imports the settings of sources.
    if name in __all__:
        from penstock.config import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
