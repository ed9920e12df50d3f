"""mkdocs hook: what docs/ links to outside of itself becomes part of the site.

The pages link to READMEs beside the code, to files of code and to the list of decisions, because that is what helps a
reader of the repository. The site has no code. So a README becomes a page below `code/`, the folder of decisions gets
a page that lists them, and a link to any other file becomes its text and its name.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
BESIDE_CODE = "code"
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<to>(?![a-z]+:|#)[^)\s]+)\)")
# A code span or a fenced block is matched first, and stays as it is.
CODE_OR_LINK = re.compile(rf"(?P<code>^(?P<fence>```+).*?^(?P=fence)|`[^`\n]*`(?!\]))|{LINK.pattern}", re.M | re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the READMEs beside the code, and the list of decisions."""
    for path in readmes():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, f"{BESIDE_CODE}/{path}", content=text))
    files.append(File.generated(config, "adr/index.md", content=decisions()))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Point each link to where the site has its aim; one to a file that the site lacks becomes text."""
    here = page.file.src_uri
    if here.startswith((f"{BESIDE_CODE}/", "adr/")):
        # Search shows what is for users first.
        page.meta["search"] = {"boost": 0.2}
    path = here.removeprefix(f"{BESIDE_CODE}/") if here.startswith(f"{BESIDE_CODE}/") else f"docs/{here}"
    there = {file.src_uri for file in files}
    return relinked(markdown, path, here, there)


def relinked(markdown: str, path: str, here: str, there: set[str]) -> str:
    """The text of a page with its links as the site needs them.

    Args:
        path: Where the page is in the repository.
        here: Where it is in the site.
        there: Every page and file of the site.
    """

    def link(found: re.Match[str]) -> str:
        if found["code"] is not None:
            return found[0]
        to, _, anchor = found["to"].partition("#")
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(path), to))
        place = in_site(aim, there)
        if place is None:
            return f"{found['text']} (`{aim}`)" if aim not in found["text"] else found["text"]
        relative = posixpath.relpath(place, posixpath.dirname(here) or ".")
        return f"{found['image']}[{found['text']}]({relative}{'#' if anchor else ''}{anchor})"

    return CODE_OR_LINK.sub(link, markdown)


def in_site(aim: str, there: set[str]) -> str | None:
    """Where the site has a path of the repository; None if it does not."""
    if aim == "README.md":
        return "index.md"
    inside = aim.removeprefix("docs/") if aim.startswith("docs/") else f"{BESIDE_CODE}/{aim}"
    return next((one for one in (inside, f"{inside}/index.md", f"{inside}/README.md") if one in there), None)


def readmes() -> list[str]:
    """Pages of the repository that are not in docs/, and that the site has below `code/`; paths below the root."""
    found = [path for folder in ("src", "tests", "examples") for path in (ROOT / folder).rglob("README.md")]
    found += [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def decisions() -> str:
    """A page that lists the decisions by number and title."""
    lines = ["# Decisions", "", "Each page says what was decided, why, and what was given up.", ""]
    for path in sorted((ROOT / "docs/adr").glob("[0-9]*.md")):
        number, _, title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(". ")
        lines.append(f"- {number}: [{title}]({path.name})")
    return "\n".join([*lines, ""])
