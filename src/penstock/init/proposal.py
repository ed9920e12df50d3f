"""Looks at a source and a target, and proposes the pipeline file between them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pydantic

from penstock.change import TableName
from penstock.config import PipelineConfig
from penstock.config.connections import ConnectionConfig, KafkaConfig
from penstock.config.document import Document, error_of
from penstock.config.secrets import SecretStore
from penstock.errors import ConfigError, OperatorError
from penstock.examination import DatabaseFacts
from penstock.init.answers import Answers
from penstock.init.captures import from_cluster, from_database, from_folder
from penstock.init.file_text import SOURCE, TARGET, CapturePart, ConnectionPart, FileParts, connection_text, file_text
from penstock.init.outputs import output_of
from penstock.init.places import (
    ClusterPlace,
    DatabasePlace,
    FolderPlace,
    Place,
    cluster_part,
    database_part,
    kafka_settings,
    place_of,
    registry_entry,
)
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.plan import Plan, all_grants, merged_grants
from penstock.pipeline.publication import Publication
from penstock.pipeline_file import parse
from penstock.storage import open_storage
from penstock.wiring import examine_database, open_pipeline

_ROUNDS = 5
"""To exclude a table may be in the way of another one; after so many rounds what is left is told by `plan`."""

_NEW = "the new file"

_UNLOGGED = (
    "It is unlogged: a crash empties it, and no change tells of that. To capture it: ALTER TABLE ... SET LOGGED."
)


@dataclass
class Proposal:
    """A pipeline file, and what its roles lack.

    Attributes:
        text: Of the file.
        config: The same as a value.
        target: What a target database says of itself; None where changes are published.
        variables: Of the environment that the file refers to, and that have to be set to what the options had.
    """

    text: str
    config: PipelineConfig
    parts: FileParts
    plan: Plan
    target: DatabaseFacts | None = None
    variables: Sequence[str] = ()

    @property
    def grants(self) -> Mapping[str, Sequence[str]]:
        """What a superuser has to run, by connection."""
        sides = {SOURCE: self.plan.source, TARGET: self.plan.target}
        return {name: merged_grants(all_grants(side)) for name, side in sides.items()}

    @property
    def recommended(self) -> Mapping[str, Sequence[str]]:
        """What a superuser should run as well."""
        return {
            SOURCE: merged_grants(self.plan.source.recommended),
            TARGET: merged_grants(self.plan.target.recommended),
        }

    @property
    def left_out(self) -> Mapping[TableName, str]:
        """Tables that cannot be carried, each with the reason: those that the file excludes, and others."""
        others = {name: "; ".join(_reason(one) for one in errors) for name, errors in self.plan.left_out.items()}
        return {**others, **self.parts.excluded}

    def to_json(self) -> dict[str, Any]:
        """The same for programs; an interface, see docs/cli.md."""
        publish, kept = self.config.publish, self.parts.kept
        return {
            "pipeline": self.config.name,
            "capture": self.config.capture.source,
            "publish": None if publish is None else publish.form,
            "tables": [table.to_json() for table in kept] or [{"table": name} for name in self.plan.tables],
            "excluded": [{"table": str(name), "reason": why} for name, why in sorted(self.left_out.items())],
            "variables": list(self.variables),
            "missing_grants": self.grants,
            "recommended_grants": self.recommended,
            "faults": [str(fault) for side in (self.plan.source, self.plan.target) for fault in side.faults],
        }


def propose(answers: Answers, environment: Mapping[str, str] = os.environ) -> Proposal:
    """Look at source and target, and write the file that carries all that can be carried.

    Raises:
        ChoiceError: A person has to choose first.
        ConfigError: A place, the name or a pattern cannot be used.
        PenstockError: A place cannot be reached, or looked at, or holds nothing that can be captured.
    """
    draft = _Draft(answers, dict(environment))
    source, target = place_of(answers.source, "--source"), place_of(answers.target, "--target")
    draft.refer(SOURCE, source)
    draft.refer(TARGET, target)
    if answers.registry is not None:
        draft.variables.update(registry_entry(answers.registry)[1])
    capture = _captured(draft, source)
    facts = None
    if isinstance(target, DatabasePlace):
        facts = examine_database(draft.database(TARGET), (), is_source=False, sessions=1).facts
    if isinstance(target, FolderPlace):
        target = FolderPlace(target.as_written_in(answers.file))
    name = answers.name or _name_of(source, capture, answers)
    parts = FileParts(
        name,
        [draft.seen(connection, capture.facts, facts) for connection in draft.connections.values()],
        capture,
        output_of(target, capture.kind, answers, name),
        {table.name: _UNLOGGED for table in capture.tables if table.is_unlogged},
        schema_path(answers.file),
    )
    pipeline, parts = _without_bad_tables(draft, parts)
    return Proposal(file_text(parts), pipeline.config, parts, pipeline.plan(), facts, sorted(draft.variables))


@dataclass
class _Draft:
    """What of the file is known before the places were looked at.

    Attributes:
        variables: Secrets by the variables that the file refers to.
    """

    answers: Answers
    environment: dict[str, str]
    connections: dict[str, ConnectionPart] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def refer(self, name: str, place: Place) -> None:
        """Have the file name a place that is reached through a connection."""
        if isinstance(place, FolderPlace):
            return
        if isinstance(place, DatabasePlace):
            self.connections[name], secrets = database_part(name, place)
        else:
            self.connections[name], secrets = cluster_part(name, place, kafka_settings(self.answers.kafka))
        self.variables.update(secrets)

    def database(self, name: str) -> ConnectionConfig:
        """A database, with its secrets."""
        return ConnectionConfig.model_validate(self._resolved(name))

    def cluster(self, name: str) -> KafkaConfig:
        """A cluster, with its secrets."""
        return KafkaConfig.model_validate(self._resolved(name))

    def seen(self, part: ConnectionPart, source: DatabaseFacts | None, target: DatabaseFacts | None) -> ConnectionPart:
        """A connection with what its database says of itself."""
        facts = source if part.name == SOURCE else target
        return part if facts is None else replace(part, seen=f"{facts.version}, {facts.collation}")

    def config(self, parts: FileParts) -> PipelineConfig:
        """The file as a value, with its secrets."""
        environment = {**self.environment, **self.variables}
        return parse(file_text(parts), name=_NEW, environment=environment, folder=self.answers.file.parent)

    def _resolved(self, name: str) -> Mapping[str, Any]:
        document = Document(connection_text(self.connections[name]), _NEW)
        environment = {**self.environment, **self.variables}
        faults = SecretStore(environment, self.answers.file.parent).put_in_place(document)
        if faults:
            raise error_of(_NEW, faults)
        return document.mapping("connections", name)


def _captured(draft: _Draft, source: Place) -> CapturePart:
    answers = draft.answers
    try:
        if isinstance(source, DatabasePlace):
            return from_database(draft.database(SOURCE), answers)
        if isinstance(source, ClusterPlace):
            return from_cluster(draft.cluster(SOURCE), answers)
    except pydantic.ValidationError as exc:
        # Its text repeats what it was given.
        first = ".".join(map(str, exc.errors(include_input=False)[0]["loc"]))
        raise ConfigError(f"{first} cannot be used", do="correct the options") from None
    return from_folder(open_storage(source.path), source.as_written_in(answers.file), answers)


def _without_bad_tables(draft: _Draft, parts: FileParts) -> tuple[Pipeline | Publication, FileParts]:
    """Exclude the tables of a database that `plan` refuses, until it refuses none.

    Raises:
        OperatorError: None is left.
    """
    if parts.capture.kind != "trigger_queue":
        # What a recording does not tell is not known yet, and `plan` leaves out what is in the way.
        return open_pipeline(draft.config(parts)), parts
    for _ in range(_ROUNDS):
        _refuse_none_left(parts)
        faults = open_pipeline(draft.config(parts)).table_faults()
        if not faults:
            break
        bad: dict[TableName, str] = {
            table: "; ".join(dict.fromkeys(_reason(error) for error in errors)) for table, errors in faults.items()
        }
        parts = replace(parts, excluded={**parts.excluded, **bad})
    return open_pipeline(draft.config(parts)), parts


def _reason(error: Exception) -> str:
    what = str(error)
    return what[0].upper() + what[1:] + ("" if what.endswith(".") else ".")


def _refuse_none_left(parts: FileParts) -> None:
    if parts.excluded and not parts.kept:
        table, reason = next(iter(sorted(parts.excluded.items())))
        raise OperatorError(
            f"no table can be carried; {table}, for one: {reason}",
            where=parts.capture.facts.label if parts.capture.facts is not None else "",
            do="fix that, or name other tables with --tables",
        )


def schema_path(file: Path) -> str | None:
    """Where editors find the JSON Schema, from the file: below its folder as a path that moves along with it."""
    package = Path(__file__).parents[1]
    # An installed package has it; a clone has it among its documentation.
    for path in (package / "pipeline.schema.json", package.parents[1] / "docs" / "pipeline.schema.json"):
        if path.is_file():
            folder = file.parent.absolute()
            return os.path.relpath(path, folder) if path.is_relative_to(folder) else str(path)
    return None


def _name_of(source: Place, capture: CapturePart, answers: Answers) -> str:
    """What a pipeline is called where nobody has said it: as its database, its connector, its topic or its folder."""
    if capture.facts is not None:
        return pipeline_name(capture.facts.label)
    if isinstance(source, FolderPlace):
        return _as_name(Path(source.path).absolute().name if "://" not in source.path else source.path.rstrip("/"))
    settings = {one.name: one.value for entry in capture.entries for one in _below(entry)}
    return _as_name(str(settings.get("prefix") or settings.get("topic") or ""))


def _below(entry: Any) -> Sequence[Any]:
    return () if isinstance(entry.value, str | int) else entry.value


def pipeline_name(label: str) -> str:
    """Make a pipeline's name of a database's, which its label begins with."""
    found = re.match(r"database (.*) on ", label)
    return _as_name(found[1] if found else "")


def _as_name(text: str) -> str:
    name = re.sub(r"[^a-z0-9_]+", "_", text.rpartition("/")[2].lower()).strip("_")[:36]
    return name if re.match(r"[a-z]", name) else "pipeline"


def check_name(name: str) -> None:
    """Raise a `ConfigError` where a pipeline cannot be called so."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,35}", name):
        do = "take lower-case letters, digits and underscores, at most 36, a letter first"
        raise ConfigError(f"a pipeline cannot be called {name!r}", where="--name", do=do)
