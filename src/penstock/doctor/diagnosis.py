"""Examines a pipeline file, its machine, its servers and its pipeline, all side by side."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from penstock.config import PipelineConfig
from penstock.config.connections import ConnectionConfig, KafkaConfig
from penstock.doctor import clusters, disks, machine, spark_cluster
from penstock.doctor.databases import clock_findings, lock_findings, pair_findings, table_findings
from penstock.doctor.looks import Look, look_side_by_side
from penstock.doctor.pipelines import plan_look, status_look
from penstock.errors import ConfigError
from penstock.examination import DatabaseFacts, Examination, Finding, Severity
from penstock.pipeline.health import ProblemKind
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.plan import Plan
from penstock.pipeline.publication import Publication
from penstock.pipeline.status import Status
from penstock.pipeline_file import load
from penstock.rules.ruleset import RuleSet
from penstock.wiring import examine_database, open_pipeline

_SESSIONS = 8
"""What a run opens beside its lanes: ledger, setup, watches, the log and the first copy."""

_Value = TypeVar("_Value")


@dataclass
class Diagnosis:
    """What was found.

    Attributes:
        config: None where the pipeline file cannot be used.
        config_fault: Why it cannot.
        databases: By the name of the connection; without those that do not answer.
    """

    file: Path
    config: PipelineConfig | None = None
    config_fault: ConfigError | None = None
    findings: Sequence[Finding] = ()
    databases: dict[str, DatabaseFacts] = field(default_factory=dict)
    plan: Plan | None = None
    status: Status | None = None
    took_s: float = 0.0

    @property
    def worst(self) -> Severity:
        """How bad the worst finding is."""
        found = {finding.severity for finding in self.findings}
        return next((one for one in (Severity.FAULT, Severity.WARNING) if one in found), Severity.OK)

    def number(self, severity: Severity) -> int:
        """How many findings are as bad."""
        return sum(finding.severity is severity for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The same for programs; an interface, see docs/cli.md."""
        return {
            "ok": self.worst is not Severity.FAULT,
            "worst": self.worst,
            "took_s": round(self.took_s, 1),
            "findings": [finding.to_json() for finding in self.findings],
            "databases": {name: facts.to_json() for name, facts in self.databases.items()},
            "versions": machine.versions(),
        }


def diagnose(file: Path, *, timeout_s: float, environment: Mapping[str, str] = os.environ) -> Diagnosis:
    """Look at everything that the pipeline of a file needs. Changes nothing.

    Args:
        timeout_s: How long the slowest look may take; what takes longer is a finding, too.
    """
    began = time.monotonic()
    found = Diagnosis(file)
    try:
        found.config = load(file, environment)
    except ConfigError as exc:
        found.config_fault = exc
    looks = [*machine.looks(found.config), *disks.looks(found.config)]
    if found.config is not None:
        looks += [*spark_cluster.looks(found.config, timeout_s=timeout_s), *_pipeline_looks(found, found.config)]
    findings = look_side_by_side(looks, timeout_s=timeout_s)
    if found.config_fault is not None:
        findings += _of_file(file, found.config_fault)
    findings += _of_databases(found)
    if any(one.look == "setup" for one in findings):
        # It says the same, and how many steps are missing.
        findings = [one for one in findings if one.look != ProblemKind.NOT_SET_UP]
    found.findings = sorted(findings, key=lambda one: [*Severity].index(one.severity))
    found.took_s = time.monotonic() - began
    return found


def _of_file(file: Path, fault: ConfigError) -> Iterator[Finding]:
    """A finding for each fault of the pipeline file."""
    if not file.exists():
        what = f"there is no pipeline file {str(file)!r}"
        yield Finding(Severity.FAULT, "pipeline_file", what, "", "penstock init, or name another one with -f")
        return
    for line in fault.what.splitlines():
        yield Finding(Severity.FAULT, "pipeline_file", line, fault.where, fault.do)


def _pipeline_looks(found: Diagnosis, config: PipelineConfig) -> Iterator[Look]:
    for name, connection in config.connections.items():
        if isinstance(connection, KafkaConfig):
            yield clusters.look_at(name, connection, clusters.ClusterPart.of(config, name))
        else:
            yield _database_look(found, config, name, connection)

    for part in (config.capture, config.publish):
        events = None if part is None else part.debezium
        if events is not None and events.registry is not None:
            yield clusters.look_at_registry(events.registry)

    def open_it() -> Pipeline | Publication:
        # Sessions of a pipeline are of one thread.
        return open_pipeline(config)

    yield plan_look(open_it, _kept(found, "plan"))
    yield status_look(open_it, _kept(found, "status"))


def _kept(found: Diagnosis, name: str) -> Callable[[_Value], None]:
    return lambda value: setattr(found, name, value)


def _database_look(found: Diagnosis, config: PipelineConfig, name: str, connection: ConnectionConfig) -> Look:
    is_source = name == config.capture.connection
    is_target = config.apply is not None and name == config.apply.connection
    patterns = tuple(config.capture.tables) if is_source else ()
    sessions = _SESSIONS + (config.parallelism if is_target else 0)

    def ask() -> Iterator[Finding]:
        seen: Examination = examine_database(connection, patterns, is_source=is_source, sessions=sessions)
        found.databases[name] = _as_ruled(config, seen.facts)
        yield from seen.findings

    return Look("connection", f"connections.{name}", ask)


def _as_ruled(config: PipelineConfig, facts: DatabaseFacts) -> DatabaseFacts:
    """The same without the tables that the rules leave out."""
    if config.rules is None:
        return facts
    rules = RuleSet.of(config.rules, config.capture.tables, config.rules.folder)
    return replace(facts, tables=[table for table in facts.tables if rules.takes(table.name)])


def _of_databases(found: Diagnosis) -> Iterator[Finding]:
    """What the facts of the databases that answered come to."""
    for facts in list(found.databases.values()):
        yield from clock_findings(facts)
        yield from table_findings(facts)
    config = found.config
    if config is None or config.apply is None or config.capture.connection is None:
        return
    source, target = (found.databases.get(name) for name in (config.capture.connection, config.apply.connection))
    if source is not None:
        yield from lock_findings(source, source.tables)
        if target is not None:
            yield from lock_findings(target, source.tables)
    if source is not None and target is not None and source is not target:
        yield from pair_findings(source, target)
