"""A schema registry that speaks Confluent's HTTP API: schemas by their ids, and ids of schemas."""

from __future__ import annotations

import base64
import json
import ssl
import uuid
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from penstock.errors import ConfigError, MalformedInputError, OperatorError, PenstockError, RetryableError

_ANSWER_S = 10.0
"""How long the registry may take to answer."""

_KNOWN = 10_000
"""How many schemas a process keeps: the text of an id never changes."""

_SCHEMA_NOT_FOUND = 40403

_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Besides those from 500 on, what a later request may be spared."""


@dataclass(frozen=True)
class Registry:
    """Asks one registry; travels to tasks.

    Attributes:
        url: Without user and password; one with a path is taken as the beginning of all paths.
        ca_pem: Certificates of the authorities to trust instead of the system's, as text.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_pem: str | None = field(default=None, repr=False)

    def schema(self, id_: int | str) -> str:
        """Return the text of an Avro schema by its number or GUID; asks once for each.

        Raises:
            RetryableError: The registry is out of reach.
            OperatorError: It does not know the schema, or refuses to answer.
            MalformedInputError: The schema is none of Avro, or is spread over several.
        """
        return _schema(self, id_)

    def register(self, subject: str, schema: str) -> int:
        """Have the text of an Avro schema be a version of a subject, and return its id; asks once for each.

        Raises:
            RetryableError: The registry is out of reach.
            OperatorError: It refuses the schema, as one that is not compatible with the versions before; or to answer.
        """
        return _registered(self, subject, schema)

    def ask(self, path: str, body: object = None) -> Any:
        """Send a request, with a body by POST, and return the answer, parsed.

        Raises:
            RetryableError: The registry is out of reach.
            OperatorError: It refuses to answer; of `NotRegisteredError` where it does not know what is asked for.
        """
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if body is not None:
            headers["Content-Type"] = "application/vnd.schemaregistry.v1+json"
        if self.user is not None:
            pair = base64.b64encode(f"{self.user}:{self.password or ''}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url}{path}", data=data, headers=headers)  # noqa: S310  # the file's check: http(s)
        try:
            with _opener(self.ca_pem).open(request, timeout=_ANSWER_S) as answer:
                return json.loads(answer.read())
        except HTTPError as exc:
            raise self._refusal(exc) from None
        except ssl.SSLCertVerificationError as exc:
            raise self._untrusted(exc) from exc
        except (URLError, OSError, HTTPException) as exc:
            reason = exc.reason if isinstance(exc, URLError) else exc
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise self._untrusted(reason) from exc
            said = getattr(reason, "strerror", None) or type(reason).__name__
            raise RetryableError(
                f"the schema registry is out of reach: {said.lower()}",
                where=self.url,
                do="see whether it is up and can be reached",
            ) from exc
        except ValueError:
            raise self._none_of_its_kind() from None

    def _refusal(self, error: HTTPError) -> PenstockError:
        """What the status of an answer means."""
        status = error.code
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING:
            return RetryableError(f"the schema registry answers with HTTP status {status}", where=self.url)
        if status == HTTPStatus.UNAUTHORIZED:
            do = "correct user and password" if self.user is not None else "name a user and a password"
            return OperatorError("the schema registry refuses the credentials", where=self.url, do=do)
        if status == HTTPStatus.FORBIDDEN:
            return OperatorError(
                "the schema registry does not let this user do that",
                where=self.url,
                do="allow it to read schemas, and to write them where it publishes",
            )
        try:
            code = json.loads(error.read())["error_code"]
        except (ValueError, KeyError, TypeError, OSError):
            return self._none_of_its_kind()
        if status == HTTPStatus.CONFLICT:
            return OperatorError(
                "the schema registry refuses a schema that is not compatible with the one before it",
                where=self.url,
                do="set the compatibility of the subject, or of the registry, to what such a change of a table needs",
            )
        if code == _SCHEMA_NOT_FOUND:
            return NotRegisteredError("the schema registry does not know the schema", where=self.url)
        return OperatorError(
            f"the schema registry refuses a request, error {code}", where=self.url, do="see what its log says of it"
        )

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> OperatorError:
        return OperatorError(
            f"the certificate of the schema registry is not trusted: {error.verify_message.lower()}",
            where=self.url,
            do="name the file of its authority as ca_file",
        )

    def _none_of_its_kind(self) -> OperatorError:
        return OperatorError("what answers is not a schema registry", where=self.url, do="correct the registry's url")


class NotRegisteredError(OperatorError):
    """The registry does not know what was asked for."""


def read_authorities(path: Path) -> str:
    """Read the certificates of authorities from a PEM file.

    Raises:
        ConfigError: It cannot be read, or holds none.
    """
    try:
        text = path.read_text(encoding="ascii")
        ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError) as exc:
        do = "name a file with the certificates of authorities"
        raise ConfigError("ca_file holds no certificates in PEM form", where=str(path), do=do) from exc
    except OSError as exc:
        do = "correct registry.ca_file, or let this user read it"
        raise ConfigError(f"cannot read ca_file: {(exc.strerror or '').lower()}", where=str(path), do=do) from exc
    return text


@lru_cache(_KNOWN)
def _schema(registry: Registry, id_: int | str) -> str:
    path = f"/schemas/ids/{id_}" if isinstance(id_, int) else f"/schemas/guids/{uuid.UUID(id_)}"
    try:
        answer = registry.ask(path)
    except NotRegisteredError as exc:
        raise NotRegisteredError(
            f"the schema registry does not know schema {id_}",
            where=exc.where,
            do="name the registry that the connector writes to; a schema that was deleted there must be restored",
        ) from None
    text = answer.get("schema") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise registry._none_of_its_kind()
    kind = answer.get("schemaType", "AVRO")
    if kind != "AVRO":
        raise MalformedInputError(
            f"schema {id_} is not Avro, but {str(kind).lower()}",
            where=registry.url,
            do="have the connector write Avro, or JSON and name no registry",
        )
    if answer.get("references"):
        raise MalformedInputError(
            f"schema {id_} refers to others, which is not read",
            where=registry.url,
            do="have the connector's converter register each schema whole",
        )
    return text


@lru_cache(_KNOWN)
def _registered(registry: Registry, subject: str, schema: str) -> int:
    try:
        answer = registry.ask(f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})
    except OperatorError as exc:
        raise OperatorError(exc.what, where=f"{exc.where}, subject {subject}", do=exc.do) from None
    id_ = answer.get("id") if isinstance(answer, dict) else None
    if type(id_) is not int:
        raise registry._none_of_its_kind()
    return id_


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow none: the credentials are for the place that was named."""


@lru_cache
def _opener(ca_pem: str | None) -> OpenerDirector:
    context = ssl.create_default_context(cadata=ca_pem)
    return build_opener(_NoRedirect, HTTPSHandler(context=context))
