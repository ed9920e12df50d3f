"""What docs/ has from the code is what the code says, and each message that is raised has its entry."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from scripts.reference import command_page, message_page, settings_page
from scripts.reference.raised import VALUE, Found, messages

import penstock
from penstock.demo.servers import _free_port
from penstock.dialects.postgres.connection import connect
from penstock.errors import ConfigError, PenstockError, RetryableError

ANEW = "scripts/write-reference writes it anew"


@pytest.fixture(scope="module")
def raised() -> Found:
    return messages(message_page.CODE)


@pytest.fixture(scope="module")
def told() -> list[str]:
    """The messages that the page has entries for, as it writes them."""
    rows = re.findall(r"^\| (``?) ?(.+?) ?\1 \| \d+ \| (.+) \|$", message_page.PAGE.read_text(), re.M)
    assert all(advice.strip() for _, _, advice in rows)
    return [text.replace("\\|", "|") for _, text, _ in rows]


def test_the_page_of_messages_is_as_the_code_raises_them() -> None:
    assert message_page.PAGE.read_text(encoding="utf-8") == message_page.page(), ANEW


def test_the_page_of_settings_is_as_the_schema_has_them() -> None:
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.page(), ANEW


def test_the_usage_and_options_of_commands_are_as_the_code_has_them() -> None:
    text = command_page.PAGE.read_text(encoding="utf-8")
    assert text == command_page.page(text), ANEW


def test_a_command_that_the_page_lacks_gets_a_section_and_an_option_that_is_gone_goes() -> None:
    text = command_page.PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition("\n### `penstock demo`")
    without = before.replace("| `--repair` |", "| `--fix` |") + "\n### " + rest.partition("\n### ")[2]

    made = command_page.page(without)

    assert "--fix" not in made
    assert "\n### `penstock demo`\n" in made
    assert made.index("### `penstock demo`") < made.index("### Of some pipelines")


def test_the_first_words_of_each_message_lead_to_its_entry(raised: Found, told: list[str]) -> None:
    assert len(raised.messages) > 700
    begins = {_plain(text) for text in told}
    lost = [m.what for m in raised.messages if message_page.is_told(m) and _plain(m.what) not in begins]
    assert lost == []


def _plain(text: str) -> str:
    return re.sub(rf"{VALUE}+", VALUE, " ".join(text.split()))


def test_a_text_that_is_not_read_is_another_errors_or_a_list_of_lines(raised: Found) -> None:
    """What the reader of the code could not follow has to be none of ours, or the page would lack it."""
    own = []
    for place in raised.passed_on:
        call = ast.parse(place.partition(": ")[2], mode="eval").body
        assert isinstance(call, ast.Call)
        if not re.search(r"\.what\b|str\(exc\)|\.join\(|redacted_reason|fault\(row\)", ast.unparse(call)):
            own.append(place)
    # These raise what another file hands to them.
    assert {place.partition(":")[0] for place in own} <= {
        "config/document.py",
        "pipeline/handlers.py",
        "pipeline/settings_check.py",
        "sources/db2_log/framing.py",
    }


def test_every_note_is_of_a_message_that_is_raised(raised: Found) -> None:
    notes = yaml.safe_load(message_page.NOTES.read_text(encoding="utf-8"))
    unused = [words for words in notes if not any(m.what.startswith(words) for m in raised.messages)]
    assert unused == []


def _open_no_file() -> None:
    penstock.open("no-such-folder/pipeline.yaml")


def _reach_no_server() -> None:
    connect(f"postgresql://nobody@127.0.0.1:{_free_port()}/none", "test")


@pytest.mark.parametrize(("fail", "kind"), [(_open_no_file, ConfigError), (_reach_no_server, RetryableError)])
def test_a_real_message_is_found_by_its_words(
    fail: Callable[[], None], kind: type[PenstockError], told: list[str]
) -> None:
    with pytest.raises(kind) as error:
        fail()
    assert [text for text in told if message_page.pattern(text).match(error.value.what)], error.value.what


CODE = """
class PenstockError(Exception): ...
class ConfigError(PenstockError): ...
class Odd(ConfigError): ...

def one(name, is_b):
    what = f"cannot read {name}"
    if is_b:
        what = "b is bad"
        raise Odd(what, do="leave b")
    raise ConfigError(what, do=f"give {name}")

def two():
    raise ConfigError(_text(1))

def _text(n):
    return "one" if n else f"many: {n}"

def _raise(what, do):
    raise ConfigError(what, do=do)

def three(exc):
    _raise("x is none", "give x")
    _raise("y is none", do="give y")
    raise ConfigError(exc.what)
"""


def test_messages_are_read_from_code_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CODE)
    found = messages(tmp_path)
    assert {(m.kind, m.what, m.do) for m in found.messages} == {
        ("Odd", "b is bad", "leave b"),
        ("ConfigError", f"cannot read {VALUE}", f"give {VALUE}"),
        ("ConfigError", "one", ""),
        ("ConfigError", f"many: {VALUE}", ""),
        ("ConfigError", "x is none", "give x"),
        ("ConfigError", "y is none", "give y"),
    }
    assert found.passed_on == ["a.py: ConfigError(exc.what)"]
