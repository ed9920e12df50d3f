"""A pipeline file without its secrets, and a last sieve for whatever a bundle is to hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import yaml

from penstock.config import PipelineConfig
from penstock.config.connections import ConnectionConfig, KafkaConfig

MASK = "***"

_SHOWN_OF_KAFKA = re.compile(
    r"bootstrap\.servers|security\.protocol|sasl\.mechanisms?|client\.id|[a-z.]+\.(ms|bytes|messages|kbytes)|acks"
)
"""Settings of a cluster that cannot be secrets; all others are masked."""

_SECRET_NAME = re.compile(r"secret|passw|token|credential|signature|private|api[._-]?key|access[._-]?key|auth", re.I)
_SQL_LITERAL = re.compile(r"'(?:[^']|'')*'")
_URL = re.compile(r"\b([a-z][a-z0-9+.-]*)://([^\s\"']*)", re.I)
_SQL_SETTINGS = ("rows", "add", "where", "sql")
"""Settings that hold SQL, in which the user may have written values of rows."""

_SHORTEST = 4
"""A shorter secret would be found in words that hold none."""


def masked_file(text: str) -> str:
    """Return the text of a pipeline file as YAML without secrets, without comments, and without constants in SQL.

    A file that is not YAML is left out: a secret may stand anywhere in it.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return "# the file is not YAML, so it is left out\n"
    if not isinstance(data, dict):
        return "# the file holds no settings\n"
    return yaml.safe_dump(_masked(data, ()), sort_keys=False, allow_unicode=True)


def _masked(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {key: _masked(inner, (*path, str(key))) for key, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner, path) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    text, name = str(value), path[-1] if path else ""
    if path[:1] == ("connections",):
        return value if name == "type" else _masked_connection(text, path)
    if _SECRET_NAME.search(name):
        return text if _is_reference(text) else MASK
    if any(one in _SQL_SETTINGS for one in path[-2:]):
        return _SQL_LITERAL.sub(f"'{MASK}'", text)
    return mask_urls(text) if isinstance(value, str) else value


def _masked_connection(text: str, path: tuple[str, ...]) -> str:
    """A url or a setting of a connection: references stay, as they hold no secret."""
    if _is_reference(text) or (path[-2] == "settings" and _SHOWN_OF_KAFKA.fullmatch(path[-1])):
        return text
    return MASK


def _is_reference(text: str) -> bool:
    return re.fullmatch(r"\$\{(env|file):[^}]+\}", text) is not None


def mask_urls(text: str) -> str:
    """Leave of each url its scheme and its host: users, paths and queries may be secrets, as those of webhooks are."""

    def bare(found: re.Match[str]) -> str:
        host = found[2].rpartition("@")[2]
        short = re.split(r"[/?#]", host, maxsplit=1)[0]
        return f"{found[1]}://{short}" + (f"/{MASK}" if len(short) < len(found[2]) else "")

    return _URL.sub(bare, text)


class Sieve:
    """Takes known secrets out of texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Take out each of these, also as a url or JSON spells it."""
        plain = {secret for secret in secrets if len(secret) >= _SHORTEST}
        spelled = plain | {quote(secret, safe="") for secret in plain}
        spelled |= {json.dumps(secret)[1:-1] for secret in plain}
        # The longest first: one may be part of another.
        self._secrets = sorted(spelled, key=len, reverse=True)

    def clean(self, text: str) -> str:
        """The text with a mask for each secret."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


def secrets_of(
    config: PipelineConfig,
    text: str,
    environment: Mapping[str, str],
    url_secrets: Callable[[ConnectionConfig], Iterable[str]],
) -> Iterator[str]:
    """Yield every secret that a pipeline file leads to, from its connections and its references.

    Args:
        text: Of the file, with its references.
        url_secrets: Returns the secrets that the url of a database holds.
    """
    for name in re.findall(r"\$\{env:([^}]+)\}", text):
        found = environment.get(name, "")
        # What is a whole url is no secret as a whole: its host is shown everywhere.
        if "://" not in found and "=" not in found:
            yield found
    for connection in config.connections.values():
        if isinstance(connection, KafkaConfig):
            yield from (
                value for name, value in connection.client_settings.items() if not _SHOWN_OF_KAFKA.fullmatch(name)
            )
        else:
            yield from url_secrets(connection)
    for part in (config.capture.debezium, config.publish.debezium if config.publish is not None else None):
        if part is not None and part.registry is not None and part.registry.password is not None:
            yield part.registry.password
