"""`penstock init`: write the first pipeline file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.console import FileOption, JsonOption, defaults, print_json, print_with_margin, say, say_wrapped
from penstock.cli.groups import takes_groups
from penstock.errors import ConfigError
from penstock.text import are, count, printable, size

if TYPE_CHECKING:
    from penstock.init.answers import Answers
    from penstock.init.proposal import Proposal

_FORMS = (
    "postgresql://USER@HOST/DATABASE, '${env:SHOP_URL}' for a variable that holds it, kafka://HOST:PORT, or ./FOLDER"
)

_NAMED = 10
"""So many tables of a recording are named."""


@dataclass(frozen=True)
class PlaceOptions:
    """What is captured from where, and where it goes."""

    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="PLACE",
            help="What to capture from: a database's url, kafka://HOST:PORT or a folder; '${env:NAME}' is a url, too.",
        ),
    ] = None
    target: Annotated[
        str | None, typer.Option("--target", metavar="PLACE", help="What to apply or publish to, written alike.")
    ] = None
    capture: Annotated[
        str | None,
        typer.Option(
            "--capture",
            metavar="KIND",
            help="Kind of source, as capture.source has it.",
            show_default="what the source turns out to be",
        ),
    ] = None
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="What to publish, as publish.format has it.",
            show_default="changes into a folder, debezium-json to Kafka",
        ),
    ] = None


@dataclass(frozen=True)
class DetailOptions:
    """What only some kinds of source or output have."""

    event_log: Annotated[
        str | None,
        typer.Option("--event-log", metavar="TABLE", help="The event log; setup makes it if it is not there."),
    ] = None
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="TEXT", help="The connector's topic.prefix; when publishing, your own."),
    ] = None
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TEXT", help="The topic of DbWatcher's messages, or of documents.")
    ] = None
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL", help="The schema registry of events in Avro.")
    ] = None
    kafka: Annotated[
        list[str] | None,
        typer.Option(
            "--kafka",
            metavar="NAME=VALUE",
            help="A setting of librdkafka's, as sasl.username=penstock; as often as you like.",
        ),
    ] = None


@takes_groups
def init(
    places: PlaceOptions,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the pipeline.", show_default="the source's")
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option("--tables", metavar="PATTERN", help="Tables to capture, as 'public.*'; as often as you like."),
    ] = None,
    *,
    details: DetailOptions,
    file: FileOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    json: JsonOption = False,
) -> None:
    """Look at a source and a target, and write the pipeline file between them; asks for what no option says."""
    path = file or defaults.file
    if path.exists() and not force:
        raise ConfigError(f"{str(path)!r} exists", do="name another file with -f, or overwrite it with --force")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder for {str(path)!r}", do="make it, or name another file with -f")
    source, target = _asked_for(places)
    from penstock.init.answers import Answers
    from penstock.init.proposal import check_name

    if name is not None:
        check_name(name)
    answers = Answers(
        source,
        target,
        path,
        name,
        patterns=tables or [],
        capture=places.capture,
        format=places.format,
        prefix=details.prefix,
        topic=details.topic,
        event_log=details.event_log,
        registry=details.registry,
        kafka=details.kafka or [],
    )
    found = _proposed(answers)
    _write(path, found.text)
    if json:
        print_json({"file": str(path), **found.to_json()})
    else:
        _show(found, path)


def _asked_for(places: PlaceOptions) -> tuple[str, str]:
    """Source and target, asked for where they are missing and somebody is there to answer.

    Raises:
        ConfigError: Some are missing, and nobody can be asked.
    """
    source, target = places.source, places.target
    missing = [option for option, place in (("--source", source), ("--target", target)) if not place]
    if not missing:
        assert source
        assert target
        return source, target
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{' and '.join(missing)} {are(len(missing))} missing, and there is no terminal to ask on",
            do=f"name {'both' if len(missing) > 1 else 'it'}: {_FORMS}",
        )
    say_wrapped(
        "A database is postgresql://USER:PASSWORD@HOST/DATABASE, or ${env:NAME} for a variable that holds this;"
        " a Kafka cluster is kafka://HOST:PORT; a folder is ./NAME. Of a password the file gets a reference only."
    )
    return source or typer.prompt("What to capture from"), target or typer.prompt("What to apply or publish to")


def _proposed(answers: Answers) -> Proposal:
    """Propose the file; what has to be chosen on the way is asked for, or is as usual where nobody can be asked."""
    from penstock.init.answers import ChoiceError
    from penstock.init.proposal import propose

    while True:
        try:
            return propose(answers)
        except ChoiceError as exc:
            if sys.stdin.isatty():
                say(printable(exc.what))
                chosen = _chosen(exc.answer.replace("_", " ").capitalize(), exc.choices, exc.default)
            elif exc.default is not None:
                chosen = exc.default
            else:
                raise
            given: dict[str, Any] = {exc.answer: chosen}
            answers = replace(answers, **given)


def _chosen(question: str, choices: Sequence[str], default: str | None) -> str:
    while True:
        answer: str = typer.prompt(f"{question} ({', '.join(choices)})", default=default)
        if answer in choices:
            return answer


def _write(path: Path, text: str) -> None:
    """Write the file whole or not at all.

    Raises:
        ConfigError: It cannot be written.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as exc:
        new.unlink(missing_ok=True)
        raise ConfigError(
            f"cannot write {str(path)!r}: {(exc.strerror or '').lower()}", do="name another file"
        ) from exc


def _show(found: Proposal, path: Path) -> None:
    capture, plan = found.parts.capture, found.plan
    facts = capture.facts
    print_with_margin("source  ", f"{facts.version}, {facts.label}" if facts is not None else plan.source.label)
    if capture.tables:
        whole = size(sum(table.size_bytes for table in found.parts.kept))
        say(f"        {count(len(found.parts.kept), 'table')}, {whole}")
    elif facts is None and plan.tables:
        named = ", ".join(plan.tables[:_NAMED]) + (", ..." if len(plan.tables) > _NAMED else "")
        print_with_margin("        ", printable(f"{count(len(plan.tables), 'table')}: {named}"))
    for line in capture.seen:
        print_with_margin("        ", printable(line))
    target = found.target
    print_with_margin("target  ", f"{target.version}, {target.label}" if target is not None else plan.target.label)
    for table, reason in sorted(found.left_out.items()):
        print_with_margin("left out  ", printable(f"{table}: {reason}"))
    keyless = [str(table.name) for table in found.parts.kept if not table.key]
    if keyless:
        print_with_margin("no key    ", f"{', '.join(keyless)}: rows are found by all their columns")
    for side in (plan.source, plan.target):
        for fault in side.faults:
            print_with_margin("in the way  ", printable(str(fault)))
    _show_grants(found)
    if plan.target.plain_role:
        say_wrapped(
            "Changes would be applied as a superuser; `penstock plan --print-sql` prints a role that is not one."
        )
    say(f"wrote {path}")
    for variable in found.variables:
        whose, _, what = variable.lower().partition("_")
        say(f"  export {variable}=...   # the {what.replace('_', ' ')} of the {whose}, which the file only refers to")
    first = [
        *(["clear what is in the way"] if plan.source.faults or plan.target.faults else []),
        *(["run these grants"] if any(found.grants.values()) else []),
    ]
    say(f"next: {', '.join([*first, 'then `penstock plan`'] if first else ['`penstock plan`'])}")


def _show_grants(found: Proposal) -> None:
    """Print what the roles lack, to be copied: one statement a line, however long."""
    for title, by_side in (("missing", found.grants), ("recommended", found.recommended)):
        for side, grants in by_side.items():
            if grants:
                say(f"-- {title} at the {side}, for a superuser to run there:")
                for grant in grants:
                    say(f"{printable(grant)};")
