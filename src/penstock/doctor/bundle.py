"""Packs what a bug report needs into a zip: no row value, no secret, no text that a user's code has written."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.database import DatabasePlan
from penstock.doctor import machine
from penstock.doctor.diagnosis import Diagnosis
from penstock.doctor.masking import Sieve, masked_file, secrets_of
from penstock.errors import ConfigError, PenstockError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.plan import Plan, all_grants
from penstock.pipeline.status import Status
from penstock.wiring import open_pipeline, url_secrets

_README = """\
Made by `penstock doctor --bundle FILE.zip` for a bug report.

Inside: what doctor found, where the pipeline stands, what setup would do (without its SQL), the pipeline file with its
secrets masked, versions, how many transactions failed with which error, and the names and types of tables and columns.

Not inside: values of rows, passwords and other secrets, texts of errors (a trigger may put a value into one), SQL of
defaults, checks, views and functions. Names of hosts, roles, tables and columns are inside: read it before you send it.
"""

_TEXTS_OF_USERS = ("error", "reason", "refused")
"""Parts of a status that may repeat what a trigger or a handler has said."""

_EXPRESSION = re.compile(r"\b(DEFAULT|CHECK|GENERATED ALWAYS AS|USING|WHERE)\b(?:'(?:[^']|'')*'|[^;'])*")
"""Advice such as `ALTER TABLE ... ADD COLUMN ... DEFAULT ...;` repeats expressions, and those may hold constants."""

_TEXTS_LOOKS = ("aborted", "not_running", "refused")
"""Looks whose findings repeat them."""


def write_bundle(found: Diagnosis, path: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Write a bundle to a new file, which only this user can read.

    Raises:
        ConfigError: The file exists, or cannot be made.
    """
    sieve = Sieve(_secrets(found, environment))
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as exc:
        raise ConfigError(f"{str(path)!r} exists", where="--bundle", do="name another file, or remove it") from exc
    except OSError as exc:
        reason = (exc.strerror or type(exc).__name__).lower()
        raise ConfigError(f"cannot write {str(path)!r}: {reason}", where="--bundle", do="name another file") from exc
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, text in _files(found):
            bundle.writestr(name, sieve.clean(text))


def _secrets(found: Diagnosis, environment: Mapping[str, str]) -> Iterator[str]:
    if found.config is not None:
        yield from secrets_of(found.config, found.file.read_text(encoding="utf-8"), environment, url_secrets)


def _files(found: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "README.txt", _README
    yield "versions.json", _json({"made_at": datetime.now(UTC).isoformat(), **machine.versions()})
    # Of what was found, what `status` and `plan` pass on from users' code stays here.
    shown = [one.to_json() for one in found.findings if one.look not in _TEXTS_LOOKS]
    hidden = [{"severity": one.severity, "look": one.look} for one in found.findings if one.look in _TEXTS_LOOKS]
    yield "findings.json", _json([*shown, *hidden])
    if found.file.is_file():
        try:
            yield "pipeline.yaml", masked_file(found.file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            yield "pipeline.yaml", "# the file cannot be read\n"
    if found.status is not None:
        yield "status.json", _json(_status(found.status))
    if found.plan is not None:
        yield "plan.json", _json(_plan(found.plan))
    for name, facts in sorted(found.databases.items()):
        yield f"databases/{name}.json", _json({**facts.to_json(), "tables": [one.to_json() for one in facts.tables]})
    errors = _errors(found)
    if errors is not None:
        yield "errors.json", _json(errors)


def _status(status: Status) -> dict[str, Any]:
    plain = status.to_json()
    return {name: value is not None if name in _TEXTS_OF_USERS else value for name, value in plain.items()}


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "tables": list(plan.tables),
        "source": _side(plan.source),
        "target": _side(plan.target),
        "not_brought": dict(Counter(one.kind for one in plan.target.differences)),
        "left_out": {str(table): [_fault(error) for error in errors] for table, errors in plan.left_out.items()},
        "refused": plan.refused is not None,
    }


def _side(side: DatabasePlan) -> dict[str, Any]:
    return {
        "database": side.label,
        "steps": [step.summary for step in side.steps],
        "missing_grants": all_grants(side),
        "notes": len(side.notes),
        "faults": [_fault(fault) for fault in side.faults],
    }


def _fault(fault: PenstockError) -> dict[str, str]:
    return {"kind": type(fault).__name__, "what": fault.what, "where": fault.where}


def _errors(found: Diagnosis) -> list[dict[str, Any]] | None:
    """The error queue by error, table and operation, without its messages; None where it cannot be read."""
    if found.config is None or found.config.apply is None or found.status is None:
        return None
    try:
        pipeline = open_pipeline(found.config)
        assert isinstance(pipeline, Pipeline)
        entries = pipeline.errors().entries()
    except PenstockError:
        return None
    kinds = Counter((one.error_number, one.error_code, str(one.table or ""), one.op) for one in entries)
    latest = {(one.error_number, one.error_code, str(one.table or ""), one.op): one.created_at for one in entries}
    return [
        {
            "error": number,
            "code": code,
            "table": table,
            "op": op,
            "entries": n,
            "last_at": latest[number, code, table, op],
        }
        for (number, code, table, op), n in kinds.most_common()
    ]


def _json(value: Any) -> str:
    return json.dumps(_without_expressions(value), indent=2, ensure_ascii=False, default=str) + "\n"


def _without_expressions(value: Any) -> Any:
    """The same plain data, without the expressions that its texts repeat."""
    match value:
        case str():
            return _EXPRESSION.sub(r"\1 ***", value)
        case Mapping():
            return {key: _without_expressions(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_without_expressions(inner) for inner in value]
        case _:
            return value
