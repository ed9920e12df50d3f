"""Who may read the page, and who may act: a token at the door, a cookie behind it, a second token in every form.

Both are derived from the token, so a server that starts again with the same token file knows its browsers again, and
another token locks all of them out.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from penstock.errors import ConfigError
from penstock.metrics.address import is_own_host

_SHORTEST = 16
"""A token of fewer characters could be guessed."""


def read_token(path: Path) -> str:
    """Read the token from a file that is ours and that nobody else may read; makes one where there is none.

    Raises:
        ConfigError: Others may read it, it is of another user, it is too short, or it can be neither read nor made.
    """
    try:
        with suppress(FileExistsError):
            # Nobody else can read it at any moment.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(f"{new_token()}\n")
        with path.open(encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            token = file.readline(4096).strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = (exc.strerror or "it cannot be read").lower() if isinstance(exc, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read --token-file {str(path)!r}: {reason}", do="name a file of your own") from exc
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"--token-file {str(path)!r} belongs to another user, who knows the token", do="name a file of your own"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(f"others may read --token-file {str(path)!r}", do=f"run `chmod 600 {path}`")
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--token-file {str(path)!r} holds no token of {_SHORTEST} characters or more, without spaces",
            do="remove the file, and a new token is made; or write one with `openssl rand -hex 24`",
        )
    return token


def new_token() -> str:
    """Make a token that nobody can guess."""
    return secrets.token_urlsafe(24)


class Access:
    """Decides about requests. All comparisons take the same time, however much of a token is right."""

    def __init__(self, token: str, *, port: int, is_reading_open: bool, hosts: Collection[str] = ()) -> None:
        """Know the token.

        Args:
            port: Of the page; browsers keep one cookie for all ports of a machine, so its name tells them apart.
            is_reading_open: What holds no row values may be read without the token.
            hosts: Names of this machine that a browser may call it by, besides localhost and numbers.
        """
        self._token = token
        self._hosts = hosts
        self.is_reading_open = is_reading_open
        self.cookie_name = f"penstock_web_{port}"
        self.cookie = self._derived("cookie")
        self.form_token = self._derived("form")

    def is_token(self, given: str) -> bool:
        """Whether somebody knows the token."""
        return _are_equal(given, self._token)

    def is_known(self, cookies: Mapping[str, str], authorization: str = "") -> bool:
        """Whether a request comes from somebody who has shown the token, or shows it."""
        scheme, _, given = authorization.partition(" ")
        is_bearer = scheme.lower() == "bearer" and self.is_token(given)
        return _are_equal(cookies.get(self.cookie_name, ""), self.cookie) or is_bearer

    def is_own_form(self, given: str, fetch_site: str | None) -> bool:
        """Whether an action was sent by a form of this page.

        Args:
            fetch_site: What the browser says of where it comes from; browsers of before 2023 say nothing.
        """
        return _are_equal(given, self.form_token) and fetch_site in (None, "same-origin", "none")

    def is_own_host(self, host: str) -> bool:
        """Whether a browser calls this machine by a name of its own; another site's scripts would count as ours."""
        return is_own_host(host, self._hosts)

    def _derived(self, purpose: str) -> str:
        return hmac.new(self._token.encode(), f"penstock web {purpose}".encode(), hashlib.sha256).hexdigest()


def _are_equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())
