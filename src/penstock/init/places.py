"""What a person names as a source or a target: a database, a Kafka cluster, or a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.config.secrets import SECRET_SETTING
from penstock.errors import ConfigError
from penstock.init.file_text import ConnectionPart, Entry
from penstock.storage import check_place
from penstock.wiring import referring_url

FORMS = "postgresql://USER@HOST/DATABASE, kafka://HOST:PORT, or a folder as ./NAME"
"""How places are written."""

_DATABASE = re.compile(r"\s*(\$\{|postgres(ql)?://|[a-z_]+\s*=)")
_STORES = ("s3", "gs", "gcs", "abfs", "abfss", "file")
_BROKER = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(:(?P<port>[0-9]{1,5}))?")
_PORT = 9092


@dataclass(frozen=True)
class DatabasePlace:
    """A database, by its url; a reference to a variable that holds one is a url, too."""

    url: str


@dataclass(frozen=True)
class ClusterPlace:
    """A Kafka cluster, by its `bootstrap.servers`."""

    brokers: str


@dataclass(frozen=True)
class FolderPlace:
    """A folder, on a disk or in an object store."""

    path: str

    def as_written_in(self, file: Path) -> str:
        """The path as a pipeline file says it, which takes it from its own folder."""
        if "://" in self.path or Path(self.path).is_absolute() or self.path.startswith("~"):
            return self.path
        return os.path.relpath(Path(self.path).absolute(), file.parent.absolute())


Place = DatabasePlace | ClusterPlace | FolderPlace


def place_of(text: str, option: str) -> Place:
    """Read what an option names.

    Raises:
        ConfigError: It is none of the three. The text is not repeated, as it may hold a password.
    """
    if _DATABASE.match(text):
        return DatabasePlace(text)
    scheme, mark, rest = text.partition("://")
    if mark and scheme == "kafka":
        return ClusterPlace(_brokers(rest, option))
    is_path = text.startswith((".", "/", "~")) or (not mark and Path(text).is_dir())
    if is_path or (mark and scheme in _STORES):
        check_place(text)
        return FolderPlace(text)
    if mark and scheme.isidentifier():
        raise ConfigError(f"{option} begins with {scheme}://, which Penstock does not connect to", do=f"write {FORMS}")
    raise ConfigError(f"{option} is no url, and there is no such folder", do=f"write {FORMS}")


def _brokers(text: str, option: str) -> str:
    found = [_BROKER.fullmatch(one.strip()) for one in text.rstrip("/").split(",")]
    if not all(found):
        do = "write kafka://HOST:PORT,HOST:PORT; the user and other settings: --kafka NAME=VALUE"
        raise ConfigError(f"{option} does not name brokers", do=do)
    return ",".join(f"{one['host']}:{one['port'] or _PORT}" for one in found if one is not None)


def database_part(name: str, place: DatabasePlace) -> tuple[ConnectionPart, Mapping[str, str]]:
    """A database as a connection of the file, and the secrets of its url by the variables that the file refers to.

    Raises:
        ConfigError: The url cannot be read.
    """
    url, secrets = referring_url("postgres", place.url, name.upper())
    return ConnectionPart(name, [Entry("type", "postgres"), Entry("url", url)]), secrets


def cluster_part(
    name: str, place: ClusterPlace, settings: Mapping[str, str]
) -> tuple[ConnectionPart, Mapping[str, str]]:
    """A cluster as a connection of the file, and the secrets of its settings by the variables that the file refers to.

    Args:
        settings: More of librdkafka's.
    """
    secrets: dict[str, str] = {}
    entries = [Entry("bootstrap.servers", place.brokers)]
    for setting, value in settings.items():
        if SECRET_SETTING.search(setting) and "${" not in value:
            variable = f"KAFKA_{re.sub('[^A-Z0-9]', '_', setting.upper())}"
            secrets[variable] = value
            value = f"${{env:{variable}}}"  # noqa: PLW2901
        entries.append(Entry(setting, value))
    return ConnectionPart(name, [Entry("type", "kafka"), Entry("settings", entries)]), secrets


def registry_entry(text: str) -> tuple[Entry, Mapping[str, str]]:
    """A schema registry as the file has it; its url may hold a user and a password."""
    scheme, mark, rest = text.partition("://")
    login, at, host = rest.rpartition("@")
    if not at:
        return Entry("registry", [Entry("url", text)]), {}
    user, _, password = login.partition(":")
    variable = "REGISTRY_PASSWORD"
    entries = [
        Entry("url", f"{scheme}{mark}{host}"),
        Entry("user", user),
        Entry("password", f"${{env:{variable}}}"),
    ]
    return Entry("registry", entries), {variable: password}


def kafka_settings(texts: Sequence[str]) -> Mapping[str, str]:
    """Read `NAME=VALUE` of `--kafka`.

    Raises:
        ConfigError: One has another form; its value is not repeated.
    """
    settings = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or re.fullmatch(r"[a-z0-9.]+", name) is None:
            do = "write --kafka sasl.username=penstock, as often as you like; names are librdkafka's"
            raise ConfigError("--kafka takes NAME=VALUE", do=do)
        settings[name] = value
    return settings
