"""Opens what settings name, with errors that name the setting."""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.storage import Storage, open_storage


def not_installed(what: str, cause: ImportError) -> ConfigError:
    """Say which library something needs that is not installed."""
    return ConfigError(f"{what} needs {cause.name}, which is not installed", do="pip install 'penstock[kafka]'")


def open_folder(path: str, setting: str) -> Storage:
    """Open a folder that a setting names; raises a `ConfigError` that names the setting."""
    try:
        return open_storage(path)
    except ConfigError as exc:
        raise ConfigError(exc.what, where=", ".join(filter(None, [setting, exc.where])), do=exc.do) from exc
