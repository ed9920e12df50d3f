"""Looks at two databases, and proposes the pipeline file between them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.change import TableName
from penstock.config import PipelineConfig
from penstock.config.connections import ConnectionConfig
from penstock.errors import ConfigError, OperatorError
from penstock.examination import DatabaseFacts
from penstock.init.file_text import SOURCE, TARGET, FileParts, file_text
from penstock.patterns import TablePattern
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.plan import Plan, all_grants, merged_grants
from penstock.pipeline_file import parse
from penstock.wiring import examine_database, open_pipeline, referring_url

_ROUNDS = 5
"""To exclude a table may be in the way of another one; after so many rounds what is left is told by `plan`."""

_UNLOGGED = (
    "It is unlogged: a crash empties it, and no change tells of that. To capture it: ALTER TABLE ... SET LOGGED."
)


@dataclass(frozen=True)
class Answers:
    """What a person wants.

    Attributes:
        source, target: Urls; a password in one becomes a reference to a variable. They may be references themselves.
        name: Of the pipeline; None: what the source database is called, as far as a pipeline may be called so.
        patterns: Of the tables; none: all tables of all schemas that have any.
    """

    source: str
    target: str
    name: str | None = None
    patterns: Sequence[str] = ()


@dataclass
class Proposal:
    """A pipeline file, and what its roles lack.

    Attributes:
        text: Of the file.
        variables: Of the environment that the file refers to, and that have to be set to what the urls had.
        config: The same as a value.
    """

    text: str
    config: PipelineConfig
    parts: FileParts
    plan: Plan
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

    def to_json(self) -> dict[str, Any]:
        """The same for programs; an interface, see docs/cli.md."""
        return {
            "pipeline": self.config.name,
            "tables": [table.to_json() for table in self.parts.tables if table.name not in self.parts.excluded],
            "excluded": [{"table": str(name), "reason": why} for name, why in sorted(self.parts.excluded.items())],
            "variables": list(self.variables),
            "missing_grants": self.grants,
            "recommended_grants": self.recommended,
            "faults": [str(fault) for side in (self.plan.source, self.plan.target) for fault in side.faults],
        }


def propose(answers: Answers, environment: Mapping[str, str] = os.environ) -> Proposal:
    """Look at both databases, and write the file that carries all that can be carried.

    Raises:
        ConfigError: A url, the name or a pattern cannot be used.
        PenstockError: A database cannot be connected to, or looked at.
    """
    source_url, source_secret = referring_url("postgres", answers.source, "SOURCE")
    target_url, target_secret = referring_url("postgres", answers.target, "TARGET")
    variables = {**source_secret, **target_secret}
    environment = {**environment, **variables}
    parts = FileParts(answers.name or "pipeline", source_url, target_url, list(answers.patterns) or ["*.*"])
    config = _read(parts, environment)
    parts = _seen(parts, config, answers)
    pipeline, parts = _without_bad_tables(parts, environment)
    plan = pipeline.plan()
    return Proposal(file_text(parts), pipeline.config, parts, plan, sorted(variables))


def _read(parts: FileParts, environment: Mapping[str, str]) -> PipelineConfig:
    return parse(file_text(parts), name="the new file", environment=environment)


def _seen(parts: FileParts, config: PipelineConfig, answers: Answers) -> FileParts:
    """The parts with what the databases say of themselves, and a name and patterns where nobody gave any."""
    source, target = _examined(config, SOURCE, config.capture.tables), _examined(config, TARGET, ())
    tables = source.tables
    if not tables:
        wanted = ", ".join(map(repr, answers.patterns)) or "any pattern: there is none"
        do = "name tables that there are with --tables, as SCHEMA.*; names are taken as they stand in the catalogue"
        raise OperatorError(f"no table matches {wanted}", where=source.label, do=do)
    schemas = sorted({table.name.schema for table in tables})
    return replace(
        parts,
        name=answers.name or pipeline_name(source.label),
        patterns=list(answers.patterns) or [TablePattern.all_of(schema) for schema in schemas],
        excluded={table.name: _UNLOGGED for table in tables if table.is_unlogged},
        source=source,
        target=target,
        tables=tables,
    )


def _examined(config: PipelineConfig, name: str, patterns: Sequence[str]) -> DatabaseFacts:
    connection = config.connections[name]
    assert isinstance(connection, ConnectionConfig)
    return examine_database(connection, patterns, is_source=name == SOURCE, sessions=1).facts


def _without_bad_tables(parts: FileParts, environment: Mapping[str, str]) -> tuple[Pipeline, FileParts]:
    """Exclude the tables that `plan` refuses, until it refuses none.

    Raises:
        OperatorError: None is left.
    """
    for _ in range(_ROUNDS):
        _refuse_none_left(parts)
        faults = _opened(parts, environment).table_faults()
        if not faults:
            break
        bad: dict[TableName, str] = {
            table: "; ".join(dict.fromkeys(_reason(error) for error in errors)) for table, errors in faults.items()
        }
        parts = replace(parts, excluded={**parts.excluded, **bad})
    return _opened(parts, environment), parts


def _opened(parts: FileParts, environment: Mapping[str, str]) -> Pipeline:
    pipeline = open_pipeline(_read(parts, environment))
    assert isinstance(pipeline, Pipeline)
    return pipeline


def _reason(error: Exception) -> str:
    what = str(error)
    return what[0].upper() + what[1:] + ("" if what.endswith(".") else ".")


def _refuse_none_left(parts: FileParts) -> None:
    if all(table.name in parts.excluded for table in parts.tables):
        table, reason = next(iter(sorted(parts.excluded.items())))
        raise OperatorError(
            f"no table can be carried; {table}, for one: {reason}",
            where=parts.source.label if parts.source is not None else "",
            do="fix that, or name other tables with --tables",
        )


def pipeline_name(label: str) -> str:
    """Make a pipeline's name of a database's, which its label begins with."""
    found = re.match(r"database (.*) on ", label)
    name = re.sub(r"[^a-z0-9_]+", "_", (found[1] if found else "").lower()).strip("_")[:36]
    return name if re.match(r"[a-z]", name) else "pipeline"


def check_name(name: str) -> None:
    """Raise a `ConfigError` where a pipeline cannot be called so."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,35}", name):
        do = "take lower-case letters, digits and underscores, at most 36, a letter first"
        raise ConfigError(f"a pipeline cannot be called {name!r}", where="--name", do=do)
