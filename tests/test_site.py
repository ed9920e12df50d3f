"""The documentation as a site: it builds without a warning, fetches nothing from elsewhere, and leaves out no page."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Fetched(HTMLParser):
    """What a browser loads for a page, without a click."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
        url = given.get(loads.get(tag, ""))
        if url and given.get("rel") not in ("canonical", "prev", "next"):
            self.urls.append(url)


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        fetched = Fetched()
        fetched.feed(page.read_text(encoding="utf-8"))
        assert fetched.urls, page
        assert [url for url in fetched.urls if re.match(r"(https?:)?//", url)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_every_page_and_what_it_links_to_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).is_file()} == set()
    architecture = (site / "architecture.html").read_text(encoding="utf-8")
    assert 'href="code/src/penstock/apply/index.html"' in architecture
    assert 'href="adr/index.html"' in architecture


def test_search_finds_pages_for_users_before_decisions_and_code(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    boosts = {one["location"]: one.get("boost", 1) for one in index["docs"]}
    assert boosts["cli.html"] == 1
    assert {boost for place, boost in boosts.items() if place.startswith(("adr/", "code/"))} == {0.2}


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hook", ROOT / "scripts/site_hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_lead_to_where_the_site_has_their_aims(hook: ModuleType) -> None:
    there = {"cli.md", "adr/index.md", "code/src/a/README.md", "index.md", "p.svg"}

    def linked(text: str, path: str, here: str) -> str:
        return str(hook.relinked(text, path, here, there))

    assert linked("[c](cli.md#x) ![p](p.svg)", "docs/b.md", "b.md") == "[c](cli.md#x) ![p](p.svg)"
    assert linked("[d](adr/)", "docs/b.md", "b.md") == "[d](adr/index.md)"
    assert linked("[a](../src/a/README.md)", "docs/b.md", "b.md") == "[a](code/src/a/README.md)"
    assert linked("[c](../../docs/cli.md)", "src/a/README.md", "code/src/a/README.md") == "[c](../../../cli.md)"
    assert linked("[home](../README.md)", "docs/b.md", "b.md") == "[home](index.md)"
    # The site has no code, and leaves addresses and what is quoted alone.
    assert linked("[the job](../src/a/b.py)", "docs/b.md", "b.md") == "the job (`src/a/b.py`)"
    assert linked("[s](https://a.example/b.md)", "docs/b.md", "b.md") == "[s](https://a.example/b.md)"
    assert linked("`[x](y.md)`\n```\n[x](y.md)\n```", "docs/b.md", "b.md") == "`[x](y.md)`\n```\n[x](y.md)\n```"
