"""Old files made of lines, converted."""

from __future__ import annotations

from typing import Any

import yaml

from penstock.xmlblaster.convert import convert
from penstock.xmlblaster.draft import Draft
from penstock.xmlblaster.old_file import OldFile
from penstock.xmlblaster.source_half import Options


def draft_of(*texts: str, options: Options | None = None) -> Draft:
    files = [OldFile(text.encode(), f"{number}.properties") for number, text in enumerate(texts, start=1)]
    return convert(files, options or Options())


def read(text: str) -> Any:
    return yaml.safe_load(text)


def watcher(*lines: str) -> str:
    return "\n".join(["db.url=jdbc:postgresql://h/d", "table.s.t=", *lines])


def writer(*lines: str) -> str:
    return "\n".join(
        [
            "db.url=jdbc:postgresql://h/d",
            "dbWriter.writer.class=org.xmlBlaster.contrib.replication.ReplicationWriter",
            *lines,
        ]
    )
