"""What a person wants of `penstock init`, and what has to be asked before the file can be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError


@dataclass(frozen=True)
class Answers:
    """What a person wants.

    Attributes:
        source, target: A database's url, `kafka://HOST:PORT` or a folder. A password in a url becomes a reference to a
            variable; urls may be references themselves.
        file: Where the pipeline file will be: paths in it are taken from its folder.
        name: Of the pipeline; None: what the source is called, as far as a pipeline may be called so.
        patterns: Of the tables; none: all that the source has.
        capture: As `capture.source` has it; None: what the source turns out to be.
        format: As `publish.format` has it.
        prefix: Of a connector's topics; when publishing, of one's own.
        topic: Of DbWatcher's messages, or of XDS documents.
        event_log: The log's table.
        registry: Url of the schema registry, for events in Avro.
        kafka: More settings of the cluster, each NAME=VALUE.
    """

    source: str
    target: str
    file: Path = Path("pipeline.yaml")
    name: str | None = None
    patterns: Sequence[str] = ()
    capture: str | None = None
    format: str | None = None
    prefix: str | None = None
    topic: str | None = None
    event_log: str | None = None
    registry: str | None = None
    kafka: Sequence[str] = ()


class ChoiceError(ConfigError):
    """Several answers would do, and a person has to choose.

    Attributes:
        answer: The field of `Answers` that is missing.
        choices: What it may be.
        default: What is taken where nobody can be asked; None: it is an error then.
    """

    def __init__(self, what: str, *, answer: str, choices: Sequence[str], default: str | None = None) -> None:
        """Ask for an answer."""
        option = f"--{answer.replace('_', '-')}"
        super().__init__(what, do=f"choose with {option}: {', '.join(choices)}")
        self.answer = answer
        self.choices = choices
        self.default = default
