"""The pipeline file: read, checked whole, every fault reported at once with its line.

Secrets come from outside: `${env:NAME}` and `${file:path}` inside a connection's url stand for the variable's value and
the file's content, without its final line break; see `config/secrets.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from penstock.config.checks import check
from penstock.config.document import Document, Fault, error_of
from penstock.config.messages import fault_of
from penstock.config.pipeline import PipelineConfig
from penstock.config.secrets import SecretStore
from penstock.errors import ConfigError


def load(path: Path, environment: Mapping[str, str] = os.environ) -> PipelineConfig:
    """Read a pipeline file.

    Raises:
        ConfigError: It cannot be read or has faults; the message names each with its line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise error_of(str(path), [Fault(1, "not UTF-8 text")]) from exc
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        raise ConfigError(
            f"cannot read {str(path)!r}: {reason.lower()}", do="name the pipeline file with -f, or write pipeline.yaml"
        ) from exc
    return parse(text, name=str(path), environment=environment, folder=path.parent)


def parse(text: str, *, name: str, environment: Mapping[str, str], folder: Path = Path()) -> PipelineConfig:
    """Check the text of a pipeline file, which lies in `folder`; see `load`."""
    document = Document(text, name)
    faults = [*document.faults, *SecretStore(environment, folder).put_in_place(document), *check(document)]
    config = None
    try:
        config = PipelineConfig.model_validate(document.data)
    except ValidationError as exc:
        found = [fault_of(document, error) for error in exc.errors() if error["loc"] not in document.reported]
        # What has no value is no value of each kind that it may be of.
        faults += dict.fromkeys(found)
    if faults or config is None:
        raise error_of(name, faults)
    config.capture.read_from(name, document.line(("capture", "source")), folder)
    if config.rules is not None:
        config.rules.read_from(name, document.lines_below("rules"))
    return config.with_folder(folder)
