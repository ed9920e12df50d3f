"""A schema registry is asked once for each schema, and what is in the way is told by its cause."""

import json
import pickle
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock.errors import ConfigError, MalformedInputError, OperatorError, PenstockError, RetryableError
from penstock.schema_registry import Registry, _schema, read_authorities
from tests.kafka.java import free_port
from tests.kafka.registry import SchemaRegistry

KEY = json.dumps({"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]})


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    # Another one may have had its port.
    _schema.cache_clear()
    with SchemaRegistry() as made:
        yield made


def test_a_schema_is_asked_for_once_by_number_and_by_guid(registry: SchemaRegistry) -> None:
    id_ = registry.register("t-key", KEY)

    for _ in range(2):
        # As tasks of one process have it: each its own copy.
        asked = pickle.loads(pickle.dumps(Registry(registry.url)))
        assert (asked.schema(id_), asked.schema(registry.guid(id_))) == (KEY, KEY)

    assert registry.requests == [f"GET /schemas/ids/{id_}", f"GET /schemas/guids/{registry.guid(id_)}"]


def test_a_schema_that_is_not_known_yet_is_asked_for_again(registry: SchemaRegistry) -> None:
    asked = Registry(registry.url)
    with pytest.raises(OperatorError, match=rf"does not know schema 1 \({re.escape(registry.url)}\)\. Name the reg"):
        asked.schema(1)

    registry.register("t-key", KEY)

    assert asked.schema(1) == KEY


@pytest.mark.parametrize(("user", "says"), [(None, "Name a user and a password"), ("ann", "Correct user and password")])
def test_credentials_that_are_refused_are_an_error_of_their_own(
    registry: SchemaRegistry, user: str | None, says: str
) -> None:
    registry.register("t-key", KEY)
    registry.password = "ann:hush"

    with pytest.raises(OperatorError, match=f"refuses the credentials.*{says}") as refused:
        Registry(registry.url, user, None if user is None else "quiet").schema(1)

    assert "quiet" not in str(refused.value)
    assert "quiet" not in repr(Registry(registry.url, user, "quiet"))
    assert Registry(registry.url, "ann", "hush").schema(1) == KEY


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (HTTPStatus.INTERNAL_SERVER_ERROR, RetryableError, "answers with HTTP status 500"),
        (HTTPStatus.SERVICE_UNAVAILABLE, RetryableError, "answers with HTTP status 503"),
        (HTTPStatus.TOO_MANY_REQUESTS, RetryableError, "answers with HTTP status 429"),
        (HTTPStatus.FORBIDDEN, OperatorError, "does not let this user"),
        (HTTPStatus.UNPROCESSABLE_ENTITY, OperatorError, "refuses a request, error 42201"),
    ],
)
def test_what_may_pass_is_told_from_what_a_person_must_change(
    registry: SchemaRegistry, status: HTTPStatus, kind: type[PenstockError], says: str
) -> None:
    registry.failing = status
    with pytest.raises(kind, match=says):
        Registry(registry.url).schema(1)


def test_a_registry_that_is_down_may_be_back_later(registry: SchemaRegistry) -> None:
    registry.register("t-key", KEY)
    asked = Registry(registry.url)
    registry.stop()
    with pytest.raises(RetryableError, match=rf"is out of reach: connection refused \({re.escape(registry.url)}\)"):
        asked.schema(1)

    registry.start()

    assert asked.schema(1) == KEY


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (b"<html>", OperatorError, "not a schema registry"),
        (b"[]", OperatorError, "not a schema registry"),
        (b'{"schema": 7}', OperatorError, "not a schema registry"),
        (b'{"schema": "{}", "schemaType": "PROTOBUF"}', MalformedInputError, "not Avro, but protobuf"),
        (b'{"schema": "{}", "references": [{"name": "a"}]}', MalformedInputError, "refers to others"),
    ],
)
def test_an_answer_of_another_form_is_refused(answer: bytes, kind: type[PenstockError], says: str) -> None:
    with serving(answer) as url, pytest.raises(kind, match=says):
        Registry(url).schema(1)


def test_a_redirection_is_not_followed_with_the_credentials() -> None:
    with (
        serving(b"", status=302, location="http://127.0.0.1:1/") as url,
        pytest.raises(OperatorError, match="a schema"),
    ):
        Registry(url, "ann", "hush").schema(1)


def test_a_certificate_must_be_of_an_authority_that_is_trusted(tmp_path: Path) -> None:
    certificate, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)

    with serving(b'{"schema": "\\"int\\""}', certificate=certificate, key=key) as url:
        with pytest.raises(OperatorError, match=r"is not trusted: self-signed certificate.*ca_file"):
            Registry(url).schema(1)
        assert Registry(url, ca_pem=read_authorities(certificate)).schema(1) == '"int"'


@pytest.mark.parametrize(
    ("content", "says"), [(None, "cannot read ca_file: no such file"), (b"key", "no certif"), (b"\xff", "no certif")]
)
def test_a_file_of_authorities_that_is_none_is_named(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as refused:
        read_authorities(path)
    assert str(path) in str(refused.value)


@contextmanager
def serving(
    answer: bytes, *, status: int = 200, location: str = "", certificate: Path | None = None, key: Path | None = None
) -> Iterator[str]:
    """Give one answer to everything, at the url that is yielded."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    port = free_port()
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{port}" if certificate is None else f"https://localhost:{port}"
        server.shutdown()
