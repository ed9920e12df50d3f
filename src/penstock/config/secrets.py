"""Secrets in a pipeline file: references such as `${env:NAME}`, put in place in connections, registries, `on_error`.

One that is the whole url is taken as it is. Any other is one part of the url, whatever characters it holds: it is
percent-encoded in a url, and escaped in `key=value` text.

Messages hold none of them: `dialects.postgres.connection.label` names a database without its password, and
`kafka.bad_settings` a setting without its value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.config.document import Document, Fault, Path_

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")

_REFERENCES = re.compile(rf"(?:{_REFERENCE.pattern})+")

_URL = re.compile(r"[a-z]+://")

_QUOTE = re.compile(r"(?<!\\)'")

_KEY_VALUE = re.compile(r"\s*[a-z_]+\s*=")

_MARK = "\0"
"""Stands for a reference where the text around it is looked at."""

_PASSWORD = re.compile(rf"://[^/@]*:(?!{_MARK}+@)[^/@]+@|password\s*=\s*+(?!'?{_MARK})")

SECRET_SETTING = re.compile(r"password|secret|user\.info|\.pem$", re.IGNORECASE)
"""Settings of Kafka's clients that hold a secret."""


@dataclass(frozen=True)
class SecretStore:
    """Where references are looked up: the variables of the environment, and files below a folder."""

    environment: Mapping[str, str]
    folder: Path

    def put_in_place(self, document: Document) -> list[Fault]:
        """Replace the references in connections, schema registries and `on_error`.

        Returns:
            The secrets that cannot be had, and those that stand in the file.
        """
        faults: list[Fault] = []
        for part in ("capture", "publish"):
            path = (part, "debezium", "registry")
            faults += self._in_settings(document, path, document.mapping(*path))
        faults += self._in_settings(document, ("on_error",), document.mapping("on_error"))
        for name, connection in document.mapping("connections").items():
            if not isinstance(connection, dict):
                continue
            if connection.get("type") == "kafka":
                path = ("connections", name, "settings")
                faults += self._in_settings(document, path, document.mapping(*path))
            elif isinstance(connection.get("url"), str):
                faults += self._in_url(document, ("connections", name, "url"), connection)
        return faults

    def _in_settings(self, document: Document, path: Path_, settings: dict[str, Any]) -> list[Fault]:
        """Replace the references in settings whose names tell which of them hold a secret."""
        faults = []
        for name, value in settings.items():
            if not isinstance(value, str):
                continue
            found = _Found(self)
            if SECRET_SETTING.search(name) and not _REFERENCE.search(value):
                found.faults.append("a secret stands in the file; write it as ${env:NAME} or ${file:path}")
            settings[name] = _REFERENCE.sub(found.secret, value)
            faults += [document.fault((*path, name), what) for what in found.faults]
        return faults

    def _in_url(self, document: Document, path: Path_, connection: dict[str, Any]) -> list[Fault]:
        url: str = connection["url"]
        faults = []
        if _PASSWORD.search(_REFERENCE.sub(_MARK, url)):
            faults.append("a password stands in the file; write it as ${env:NAME} or ${file:path}")
        found = _Found(self)
        if "${" in _REFERENCE.sub(_MARK, url):
            found.faults.append("a secret is written as ${env:NAME} or ${file:path}, and ${ begins something else here")
        if not _has_form(url):
            found.faults.append(
                "a reference is the whole url, or one part of it: postgresql://user:${env:NAME}@host/database"
            )
        connection["url"] = found.replaced(url)
        if not found.faults and not connection["url"].strip():
            # libpq would take whatever database its own defaults name.
            whole = _REFERENCE.fullmatch(url)
            found.faults.append(f"{_named(*whole.groups())} is empty" if whole else "is empty")
        return [document.fault(path, what) for what in faults + found.faults]


class _Found:
    """The secrets of one setting, and why some of them cannot be had."""

    def __init__(self, store: SecretStore) -> None:
        self._store = store
        self.faults: list[str] = []

    def replaced(self, url: str) -> str:
        """The url with its secrets, each as one part of it that can end neither itself nor the url."""
        if _REFERENCE.fullmatch(url):
            return _REFERENCE.sub(self.secret, url)
        if _URL.match(url):
            return _REFERENCE.sub(lambda found: quote(self.secret(found), safe=""), url)

        def escaped(found: re.Match[str]) -> str:
            text = re.sub(r"([\\'\s])", r"\\\1", _REFERENCE.sub(self.secret, found.group()))
            before, after = url[: found.start()], url[found.end() :]
            is_quoted = len(_QUOTE.findall(before)) % 2 == 1
            is_whole_value = before.rstrip().endswith("=") and not after[:1].strip() and not is_quoted
            # Of an empty value libpq would take the next option for the value.
            return "''" if is_whole_value and not text else text

        return _REFERENCES.sub(escaped, url)

    def secret(self, reference: re.Match[str]) -> str:
        """Look a secret up; where it cannot be had, the text is empty and `faults` says why."""
        kind, name = reference.groups()
        what = _named(kind, name)
        try:
            # What of a variable is no UTF-8 comes as half a character, and is refused here.
            store = self._store
            content = store.environment[name].encode() if kind == "env" else (store.folder / name).read_bytes()
            text = content.decode()
        except KeyError:
            self.faults.append(f"{what} is not set")
        except UnicodeError:
            self.faults.append(f"{what} is not UTF-8 text")
        except OSError as exc:
            self.faults.append(f"cannot read {what}: {(exc.strerror or '').lower()}")
        else:
            if "\0" not in text:
                return text if kind == "env" else re.sub(r"\r?\n\Z", "", text)
            self.faults.append(f"{what} holds a zero byte, which no connection can be given")
        return ""


def _has_form(url: str) -> bool:
    """Whether it is known how a secret has to be written at its place in the url."""
    is_whole = _REFERENCE.fullmatch(url) or not _REFERENCE.search(url)
    return bool(is_whole or _URL.match(url) or _KEY_VALUE.match(url))


def _named(kind: str, name: str) -> str:
    return f"environment variable {name}" if kind == "env" else f"file {name!r}"
