"""Build hook: README.md as the package's description, for pages that show it away from its folder.

There a relative link leads nowhere. So the picture is left out, and each link to a file becomes the file's name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", re.M)
LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?!https?:)(?P<file>[^)#]+)[^)]*\)")
NOTE = "The files named here are in the source distribution and in the repository.\n\n"
FIRST_CHAPTER = "## With your own databases\n"


class ReadmeForPyPI(MetadataHookInterface):
    """Gives `project.readme`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write it into the project's metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_relative_links(text)}


def without_relative_links(text: str) -> str:
    """The text without relative images, and with the names of files for links to them."""
    return LINK.sub(_name, IMAGE.sub("", text)).replace(FIRST_CHAPTER, NOTE + FIRST_CHAPTER, 1)


def _name(link: re.Match[str]) -> str:
    text, file = link["text"], f"`{link['file']}`"
    return file if text == link["file"] else f"{text} ({file})"
