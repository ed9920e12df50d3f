"""Properties of a DbWatcher, a DbWriter or both, turned into a pipeline file.

A DbWatcher becomes the source half of a pipeline, which publishes messages, and a DbWriter the target half, which reads
them. Both together become one pipeline from triggers to rows, without messages between.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ConfigError
from penstock.xmlblaster.draft import Draft
from penstock.xmlblaster.known_keys import known_key
from penstock.xmlblaster.old_file import Half, OldFile
from penstock.xmlblaster.source_half import Options, SourceHalf
from penstock.xmlblaster.tables import cleaned_prefix
from penstock.xmlblaster.target_half import TargetHalf

DEFAULT_PREFIX = "REPL_"

_LONGEST_NAME = 36


def convert(files: Sequence[OldFile], options: Options) -> Draft:
    """Make a pipeline file.

    Args:
        files: One file, or that of a DbWatcher and that of a DbWriter in any order.
        options: What no property says.

    Raises:
        ConfigError: The files are no such pair, a property cannot be read, or no table is named.
        OperatorError: A database is not PostgreSQL.
    """
    watcher, writer = _halves(files)
    _check_options(options, watcher, writer)
    draft = Draft({"version": 1})
    prefix = _name(draft, watcher, writer)
    source = None if watcher is None else SourceHalf(draft, watcher, prefix, options)
    target = None if writer is None else TargetHalf(draft, writer, options)
    if source is not None:
        source.capture()
    if target is not None:
        target.read_names(source)
    _rules(draft, source, target)
    if target is not None:
        target.apply(source)
    elif source is not None:
        source.publish()
    for file in files:
        _remaining(draft, file)
    return draft


def _halves(files: Sequence[OldFile]) -> tuple[OldFile | None, OldFile | None]:
    """The file of the DbWatcher and that of the DbWriter; of two, one that does not tell is the other's."""
    halves = [file.half for file in files]
    if len(files) == 2 and halves.count(None) == 1:
        other = Half.WRITER if Half.WATCHER in halves else Half.WATCHER
        halves = [half or other for half in halves]
    for file, half in zip(files, halves, strict=True):
        if half is None:
            raise ConfigError(
                "no property tells whether the file is of a DbWatcher or of a DbWriter",
                where=file.name,
                do="a DbWatcher's names tables (table.<schema>.<table>=), and a DbWriter's has dbWriter.writer.class",
            )
    if len(set(halves)) < len(halves):
        named = f"a {halves[0].value}" if halves[0] else "one side"
        raise ConfigError(
            f"{files[0].name} and {files[1].name} are both of {named}",
            do="give the file of one DbWatcher, of one DbWriter, or one of each; each pair becomes a pipeline file",
        )
    by_half = dict(zip(halves, files, strict=True))
    return by_half.get(Half.WATCHER), by_half.get(Half.WRITER)


def _check_options(options: Options, watcher: OldFile | None, writer: OldFile | None) -> None:
    if options.documented and watcher is None:
        raise ConfigError("--documented is for a DbWatcher, which has the tables", do="give its file as well")
    if options.kafka is not None and watcher is not None and writer is not None:
        raise ConfigError(
            "--kafka names brokers, and a pipeline from a DbWatcher to a DbWriter has no messages",
            do="leave it out, or convert the two files one by one",
        )


def _name(draft: Draft, watcher: OldFile | None, writer: OldFile | None) -> str:
    """Write the pipeline's name, which comes from the prefix of the replication; return the prefix."""
    found: dict[str, str] = {}
    for file in (watcher, writer):
        prefix = None if file is None else file.take("replication.prefix")
        if file is None or prefix is None:
            continue
        draft.count(file.name, "replication.prefix")
        if prefix:
            found[file.name] = prefix
    if len(set(found.values())) > 1:
        draft.checks.append(f"replication.prefix differs in {' and '.join(found)}; that of the first is used")
    given = next(iter(found.values()), None)
    prefix = cleaned_prefix(given or DEFAULT_PREFIX)
    letters = "".join(char if char.isascii() and char.isalnum() else "_" for char in prefix.lower()).strip("_")
    name = letters if letters[:1].isalpha() else f"repl_{letters}".rstrip("_")
    draft.set(("name",), name[:_LONGEST_NAME], f"replication.prefix={prefix}" + ("" if given else ", its default"))
    if given is not None and prefix != given:
        draft.checks.append(f"replication.prefix is used as {prefix}, as xmlBlaster cleans it")
    return prefix


def _rules(draft: Draft, source: SourceHalf | None, target: TargetHalf | None) -> None:
    """Write `rules`, which come from both halves."""
    if source is not None and (resources := source.excluded()):
        comment = "table.<schema>.* means the DbResources as well, if they lie in the schema"
        draft.set(("rules", "exclude"), resources, comment)
    # The DbWriter's rules contain what the DbWatcher says of operations.
    half = target or source
    rules = {} if half is None else half.rules()
    if not rules:
        return
    if source is not None and source.operations:
        draft.comment(
            ("rules", "tables"),
            "actions= of table.*: rows then differ from the source's, and `penstock verify` shows them",
        )
    if target is not None and target.has_names:
        draft.comment(("rules", "tables"), "replication.mapper.*")
    draft.set(("rules", "tables"), rules)


def _remaining(draft: Draft, file: OldFile) -> None:
    """Say what becomes of each key that no part of the file comes from."""
    for key in file.left():
        known = known_key(key)
        if known is None:
            draft.leave(file.name, key)
            continue
        is_others = known.half is not None and file.half is not None and known.half is not file.half
        draft.remark(
            file.name, key, known.why + (f" (a property of a {known.half.value})" if known.half and is_others else "")
        )
        if known.is_checked:
            draft.checks.append(f"{key} ({file.name}): {known.why}")
    if file.repeated:
        draft.checks.append(f"the last value counts of {', '.join(file.repeated)} ({file.name})")
