"""README.md and docs/ say what is so: links lead somewhere, examples are read, commands exist."""

from __future__ import annotations

import ast
import importlib
import io
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer
from markdown_it import MarkdownIt
from markdown_it.token import Token

from penstock.apply import apply_errors
from penstock.change import ARROW_SCHEMA, Op
from penstock.cli.console import defaults
from penstock.cli.main import app
from penstock.dialects.postgres.target.ledger_version import VERSION, stamp
from penstock.errors import PenstockError
from penstock.formats.change_file import encode_lines
from penstock.pipeline_file import parse
from penstock.position import START, Limit
from penstock.spark.schemas import CHANGES
from penstock.storage import LocalStorage
from penstock.user_code import load
from tests.archives import publish, read

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(p for d in ("docs", "examples") for p in sorted((ROOT / d).rglob("*.md"))),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

MARKDOWN = MarkdownIt("commonmark").enable("table")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def tokens(markdown: str) -> Iterator[Token]:
    for token in MARKDOWN.parse(markdown):
        yield token
        yield from token.children or []


def links(markdown: str) -> list[str]:
    """Where links and images lead that name no other host."""
    found = [token.attrGet("href") or token.attrGet("src") for token in tokens(markdown)]
    return [unquote(str(link)) for link in found if link and not re.match(r"[a-z]+:", str(link))]


def anchors(markdown: str) -> set[str]:
    """What headings are called in a url, as GitHub and GitLab spell it."""
    parsed = MARKDOWN.parse(markdown)
    headings = [parsed[n + 1].content for n, token in enumerate(parsed) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(markdown: str, language: str) -> list[str]:
    return [one.content for one in tokens(markdown) if one.type == "fence" and one.info.split(" ")[0] == language]


def test_the_reader_of_change_files_that_is_shown_reads_them(tmp_path: Path) -> None:
    publish(LocalStorage(tmp_path))
    (code,) = [block for block in blocks(text("docs/change-files.md"), "python") if "def read_archive" in block]
    page: dict[str, Any] = {}
    exec(code, page)

    found = list(page["read_archive"](tmp_path))

    lines = encode_lines(read(LocalStorage(tmp_path))).to_pybytes().decode().splitlines()
    assert found == [json.loads(line) for line in lines]
    assert set(found[-1]) <= set(ARROW_SCHEMA.names)


def test_every_column_of_the_change_stream_is_described() -> None:
    described = set(re.findall(r"`(\w+)`", text("docs/change-files.md").partition("## Changes")[2]))
    assert set(ARROW_SCHEMA.names) <= described
    assert {op.value for op in Op} <= described


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        aim = (page.parent / path).resolve() if path else page
        assert aim.exists(), link
        assert aim.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(aim.read_text(encoding="utf-8")), link


def test_a_link_that_leads_nowhere_is_seen() -> None:
    assert links("[a](b.md#c) ![d](e.svg) [f](https://g.example) `[h](i.md)`") == ["b.md#c", "e.svg"]
    assert anchors("# One `two` <three>, four: five\n\n```\n# no\n```") == {"one-two-three-four-five"}


def long_lines(markdown: str) -> list[str]:
    """Lines of more than 120 characters that could be broken: tables, pictures and output could not."""
    without_fences = re.sub(r"^ *```.*?^ *```$", "", markdown, flags=re.M | re.S)
    return [line for line in without_fences.splitlines() if len(line) > 120 and not re.match(r" *(\||!\[)", line)]


# A decision is not edited afterwards, and an entry of the changelog is a line.
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(("docs/adr/", "CHANGELOG"))])
def test_no_line_of_text_is_over_120_characters_long(name: str) -> None:
    assert long_lines(text(name)) == []


def test_a_long_line_is_seen() -> None:
    long = "word " * 30
    assert long_lines(f"{long}\n| {long}\n![{long}](a.png)\n```text\n{long}\n```\n- {long}\n") == [long, f"- {long}"]


@pytest.mark.parametrize("name", ["README.md", "docs/pipeline-file.md", "docs/conflicts.md", "docs/handlers.md"])
def test_the_pipeline_file_that_is_shown_is_one(name: str) -> None:
    (example,) = [block for block in blocks(text(name), "yaml") if "version:" in block]
    (exports,) = re.findall(r"^export (SHOP_URL=.*)$", text("README.md"), re.M)
    environment = dict(word.split("=", 1) for word in shlex.split(exports))
    config = parse(example, name=name, environment=environment)
    assert [connection.url for connection in config.connections.values()] == list(environment.values())


def options(schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every option of a pipeline file, as its page names them."""
    for named in re.findall(r"#/\$defs/(\w+)", json.dumps({k: v for k, v in schema.items() if k != "properties"})):
        yield from options(definitions[named], definitions, prefix)
    for name, option in schema.get("properties", {}).items():
        path = prefix + name
        below = list(options(option, definitions, f"{path}.{LISTED.get(path, '')}"))
        yield from below or [path]


LISTED = {"connections": "<c>.", "rules.tables": "<p>.", "apply.tables": "<t>."}


def test_every_option_of_a_pipeline_file_has_a_row() -> None:
    schema = json.loads(text("docs/pipeline.schema.json"))
    keys = [line.split("|")[1] for line in text("docs/pipeline-file.md").splitlines() if line.startswith("| `")]
    named = {name for key in keys for name in re.findall(r"`([^`]+)`", key)}
    named |= {f"capture.debezium{name}" for name in named if name.startswith(".")}
    # These have a table on the page of what they are for.
    rows = [line.split("|")[1] for line in text("docs/kafka.md").splitlines() if line.startswith("| `")]
    named |= {f"publish.debezium.{name}" for row in rows for name in re.findall(r"`([^`]+)`", row)}
    rows = [line.split("|")[1] for line in text("docs/event-log.md").splitlines() if line.startswith("| `")]
    named |= {f"capture.event_log.{name}" for row in rows for name in re.findall(r"`([^`]+)`", row)}
    found = set(options({k: v for k, v in schema.items() if k != "$defs"}, schema["$defs"]))
    assert {"connections.<c>.url", "rules.tables.<p>.step", "capture.debezium.prefix"} <= found
    assert found - named == set()


def test_the_source_that_is_shown_is_one(tmp_path: Path) -> None:
    (shown,) = blocks(text("docs/extending.md"), "python")
    (tmp_path / "json_changes.py").write_text(shown)
    (said,) = re.findall(r"^ *# (\{.*\})$", shown, re.M)
    later = '{"committed_at_us": 0, "changes": [{"op": "delete", "before": {"id": "1", "price": null}, "after": null}]}'
    storage = LocalStorage(tmp_path / "changes")
    for name, content in {"id.txt": "mine", "7.json": said, "9.json": later}.items():
        storage.create(name, content.encode())

    side = load("json_changes:open_json", tmp_path)(storage)

    (table,) = side.match(["public.*"])
    assert side.describe([table])[table].primary_key is not None
    with closing(side.open_source()) as source:
        part = source.next_slice(START, Limit())
        assert part is not None
        assert source.next_slice(part.end, Limit()) is None
    reader = side.access.reader("shop", source.tables(), follows=[table])
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    images = [(row["commit_scn"], row["op"], row["key"], row["before"], row["after"]) for row in rows]
    assert images == [
        (7, "insert", '{"id":"1"}', None, '{"id":"1"}'),
        (9, "delete", '{"id":"1"}', '{"id":"1","price":null}', None),
    ]


def test_every_class_that_an_extension_implements_is_where_the_page_says() -> None:
    named = re.findall(r"`((?:[a-z_]+\.)+[A-Z]\w+)`", text("docs/extending.md"))
    assert "snapshot.task.TargetAccess" in named
    for module, _, name in (one.rpartition(".") for one in named):
        assert hasattr(importlib.import_module(f"penstock.{module}"), name), f"{module}.{name}"


def commands(markdown: str) -> list[str]:
    """Every `penstock ...` in shell blocks and in running text."""
    lines = [part for block in blocks(markdown, "sh") for part in re.split(r"\n|; | && | \| ", block)]
    spans = [token.content for token in tokens(markdown) if token.type == "code_inline"]
    found = [re.sub(r"^(export \S+|[A-Z_]+=\S+) ", "", part.strip()) for part in lines + spans]
    return [part for part in found if re.match(r"penstock [a-z-]", part)]


@cache
def complaint_of(words: tuple[str, ...]) -> str:
    """What `penstock` says of a command line that it cannot read; nothing if it can."""
    before = replace(defaults)
    try:
        with redirect_stdout(io.StringIO()):
            whole_command().main([*words, "--help"], prog_name="penstock", standalone_mode=False)
    except PenstockError:
        # It was read: an option without its value has taken `--help` for it.
        return ""
    except Exception as exc:
        return str(exc)
    finally:
        # What a command line names is for it alone.
        defaults.file, defaults.is_said = before.file, before.is_said
    return ""


@cache
def whole_command() -> Any:
    """`penstock`, with all that is below it."""
    return typer.main.get_command(app)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_that_is_named_exists(name: str) -> None:
    for command in commands(text(name)):
        assert not complaint_of(tuple(shlex.split(command, comments=True)[1:])), command


def test_a_command_that_does_not_exist_is_seen() -> None:
    assert "frobnicate" in complaint_of(("frobnicate",))
    assert "--everything" in complaint_of(("verify", "--everything"))
    assert not complaint_of(("errors", "retry", "ID..."))
    assert commands(
        '```sh {data-norun="a"}\npenstock plan  # all\npenstock run; echo\n```\n`penstock run`, `penstock_x`'
    ) == [
        "penstock plan  # all",
        "penstock run",
        "penstock run",
    ]


def targets(markdown: str) -> list[str]:
    """Every target of `make ...` in shell blocks and in running text; "" for one without: it installs nothing."""
    commands = [line for block in blocks(markdown, "sh") for line in block.splitlines()]
    spans = [token.content for token in tokens(markdown) if token.type == "code_inline"]
    commands += [span for span in spans if re.fullmatch(r"make [a-z-]+( [A-Z]+=.*)?", span)]
    return [found[1] or "" for one in commands if (found := re.match(r"make\b(?: ([a-z-]+))?", one))]


@pytest.mark.parametrize("name", [*NAMES, "CONTRIBUTING.md"])
def test_every_target_of_make_that_is_named_exists(name: str) -> None:
    assert set(targets(text(name))) <= set(re.findall(r"^([a-z-]+):", text("Makefile"), re.M))


def test_a_make_without_a_target_is_seen() -> None:
    page = "```sh\nmake && cd x\nmake install\n```\n`make` a change, `make bench ROUNDS=1`"
    assert targets(page) == ["", "install", "bench"]


def rows(name: str, heading: str) -> list[list[Token]]:
    """The cells of each row of the page's table of three columns whose first heading this is."""
    cells: list[Token] = []
    for token in MARKDOWN.parse(text(name)):
        if token.type == "table_open":
            cells = []
        elif token.type == "inline":
            cells.append(token)
        elif token.type == "table_close" and cells[0].content == heading:
            break
    assert cells[0].content == heading
    return [cells[n : n + 3] for n in range(3, len(cells), 3)]


def spans(cell: Token) -> list[str]:
    return [token.content for token in cell.children or [] if token.type == "code_inline"]


FOLDER = ROOT / "src/penstock"


def files_named(markdown: str) -> list[str]:
    """Files that are named, as `apply/net.py`."""
    return re.findall(r"`([\w/.-]+\.(?:py|sql))`", markdown)


def test_files_that_the_architecture_and_the_glossary_name_are_there() -> None:
    # The last column of the glossary has former names.
    terms = re.sub(r" \|[^|]*\|$", "", text("docs/glossary.md"), flags=re.MULTILINE)
    named = files_named(text("docs/architecture.md")) + files_named(terms)
    assert len(named) > 100
    assert [name for name in named if not any((place / name).is_file() for place in (FOLDER, ROOT))] == []


def test_files_that_the_readme_of_a_folder_names_are_there() -> None:
    for page in sorted(FOLDER.rglob("README.md")):
        # Beside it, below it, or above it; `config.py` is one of each source and sink.
        places = [*page.parent.rglob("*/"), *page.parents]
        named = [name for name in files_named(page.read_text(encoding="utf-8")) if name != "config.py"]
        assert [name for name in named if not any((place / name).is_file() for place in places)] == [], page


def test_what_the_table_of_symptoms_names_is_in_the_files_that_it_names() -> None:
    for _, begin, know in rows("docs/architecture.md", "symptom"):
        for cell in (begin, know):
            content = ""
            for name in spans(cell):
                if re.search(r"\.(py|sql)$", name):
                    content = (FOLDER / name).read_text(encoding="utf-8")
                elif content:
                    assert re.search(rf"\b(def|class) {name}\b|^ +{name}: ", content, re.M), (name, cell.content)


def test_each_command_has_a_section_and_the_options_that_it_names_exist() -> None:
    sections = re.split(
        r"^### `penstock (.+)`$", text("docs/cli.md").partition("\n### Of some pipelines")[0], flags=re.M
    )
    named = sections[1::2]
    assert sorted(named) == sorted(every_command(app))
    for command, section in zip(named, sections[2::2], strict=True):
        # A table of options is made from the code; what is written by hand is looked at.
        by_hand = re.sub(r"^\|.*$", "", section, flags=re.M)
        shown = [span for token in MARKDOWN.parse(by_hand) if token.type == "inline" for span in spans(token)]
        for option in (span for span in shown if span.startswith("-") and span not in ("--json", "-")):
            assert not complaint_of((*command.split(), *option.split())), (command, option)


def every_command(part: typer.Typer) -> Iterator[str]:
    for command in part.registered_commands:
        assert command.callback is not None
        yield command.name or command.callback.__name__
    for group in part.registered_groups:
        assert group.name is not None
        assert group.typer_instance is not None
        yield from (f"{group.name} {name}" for name in every_command(group.typer_instance))
        alone = group.typer_instance.registered_callback
        if alone is not None and alone.invoke_without_command is True:
            yield group.name


def test_every_error_number_is_documented() -> None:
    table = text("docs/postgresql.md").partition("## Error numbers")[2].partition("\n## ")[0]
    listed = {
        int(number) for cell in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for number in cell.split(",")
    }
    assert listed == {number for number in vars(apply_errors).values() if isinstance(number, int)}


def test_the_version_of_the_ledger_is_the_one_that_the_page_gives() -> None:
    assert stamp(VERSION) in text("docs/postgresql.md")


def test_the_columns_of_the_stream_are_documented() -> None:
    columns = [(name, kind.content) for which, kind, _ in rows("docs/postgresql.md", "column") for name in spans(which)]
    spark = {"bigint": "long", "int": "integer"}
    assert columns == [(f.name, spark.get(f.dataType.simpleString(), f.dataType.simpleString())) for f in CHANGES]


def rules_shown(code: str) -> dict[str, set[str]]:
    """Which tests of a module name which rules: by the mark `rule`, by their own name, or by that of a case."""
    shown: dict[str, set[str]] = defaultdict(set)
    for test in ast.walk(ast.parse(code)):
        if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test_"):
            continue
        if scenario := re.match(r"test_s(\d+)_", test.name):
            shown[f"S-{scenario[1]}"].add(test.name)
        for word in (part for mark in test.decorator_list for part in ast.walk(mark)):
            if isinstance(word, ast.Call) and ast.unparse(word.func) == "pytest.mark.rule":
                for number in word.args:
                    shown[ast.literal_eval(number)].add(test.name)
            elif isinstance(word, ast.keyword) and (scenario := re.match(r"id='(s(\d+) .*)'$", ast.unparse(word))):
                shown[f"S-{scenario[2]}"].add(f"{test.name}[{scenario[1]}]")
    return shown


def rules_listed(page: str) -> dict[str, set[str]]:
    """The rules that the page has a row for, and the tests that the row names."""
    found = re.findall(r"^\| ([A-Z]-\d+) \| .+ \| (.*) \|$", page, re.MULTILINE)
    assert len(found) == len(dict(found)), "two rows of one number"
    return {number: set(re.findall(r"`([^`]+)`", tests)) for number, tests in found}


def test_rules_are_listed_with_the_tests_that_show_them() -> None:
    shown: dict[str, set[str]] = defaultdict(set)
    mentioned = set()
    for module in sorted((ROOT / "tests").rglob("*.py")):
        code = module.read_text(encoding="utf-8")
        if module != Path(__file__):
            mentioned |= set(re.findall(r"\b[ASC]-\d+\b", code))
            for number, tests in rules_shown(code).items():
                shown[number] |= {f"{module.relative_to(ROOT).as_posix()}::{test}" for test in tests}

    assert rules_listed(text("docs/rules.md")) == shown
    assert mentioned <= set(shown)


def test_rules_are_read_from_marks_names_and_cases() -> None:
    code = """
@pytest.mark.rule("A-1", "A-2")
def test_s3_one(): ...
@pytest.mark.parametrize("n", [pytest.param(1, id="s4 case"), pytest.param(2, marks=pytest.mark.rule("C-5"))])
def test_two(n): ...
@pytest.mark.rule("A-6")
def helper(): ...
"""
    assert rules_shown(code) == {
        "A-1": {"test_s3_one"},
        "A-2": {"test_s3_one"},
        "S-3": {"test_s3_one"},
        "S-4": {"test_two[s4 case]"},
        "C-5": {"test_two"},
    }
    assert rules_listed("| rule | a |\n| --- | --- |\n| A-1 | b | `c::d`, `e::f` |\n") == {"A-1": {"c::d", "e::f"}}
