"""Who messages are handed to: a program, or a webhook. Neither is trusted to answer in time, or at all."""

from __future__ import annotations

import hashlib
import hmac
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPException, HTTPMessage
from queue import Empty, SimpleQueue
from typing import IO
from urllib.parse import urlsplit

from penstock.alerts.config import BodyFormat, OnErrorConfig
from penstock.alerts.message import AlertMessage

_MOST_READ = 1024


class NotDeliveredError(Exception):
    """A message was not taken; the text says why, and holds no url, argument or secret."""


class Receiver(ABC):
    """Takes messages, one at a time, on the thread of the sender."""

    label: str
    """Who it is, for a log: without secrets."""

    @abstractmethod
    def send(self, message: AlertMessage) -> None:
        """Hand over a message; raises NotDeliveredError."""


class CommandReceiver(Receiver):
    """A program that is started for each message, which it reads from its standard input."""

    def __init__(self, arguments: Sequence[str], timeout_s: float) -> None:
        """Start `arguments`, without a shell; kill it with its children after the timeout."""
        self._arguments = list(arguments)
        self._timeout_s = timeout_s
        self.label = f"command {os.path.basename(arguments[0])!r}"  # noqa: PTH119  # the text of a path, as given

    def send(self, message: AlertMessage) -> None:
        """See `Receiver`; an exit code other than 0 is a failure."""
        try:
            process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Ctrl-C ends the run, and not the message that says so; and all of its children can be ended at once.
                start_new_session=True,
            )
        except (OSError, ValueError) as exc:
            reason = (isinstance(exc, OSError) and exc.strerror) or type(exc).__name__
            raise NotDeliveredError(f"cannot be started: {reason.lower()}") from exc
        try:
            process.communicate(message.to_json() + b"\n", self._timeout_s)
        except subprocess.TimeoutExpired as exc:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise NotDeliveredError(f"did not end within {self._timeout_s:g} s, and was killed") from exc
        if process.returncode:
            raise NotDeliveredError(f"ended with exit code {process.returncode}")


class Webhook(Receiver):
    """A url that each message is sent to by POST.

    Headers: `Penstock-Id`, the same on each attempt, `Penstock-Timestamp`, and with a secret `Penstock-Signature`, the
    hex digits of HMAC-SHA256 over timestamp, a dot and the body.
    """

    def __init__(
        self,
        url: str,
        *,
        form: BodyFormat,
        secret: str | None,
        timeout_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Send to `url`; nothing is connected to yet."""
        self._url = url
        self._form = form
        self._secret = secret
        self._timeout_s = timeout_s
        self._clock = clock
        # A redirect could send what is meant for one host to another.
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._posting: threading.Thread | None = None
        self.label = f"webhook at {urlsplit(url).hostname}"

    def send(self, message: AlertMessage) -> None:
        """See `Receiver`; any answer but 2xx is a failure.

        A socket's timeout holds for each of its reads, so a receiver that answers byte by byte could take hours: the
        request has a thread of its own, which is left behind after the timeout. There is never a second one.
        """
        if self._posting is not None and self._posting.is_alive():
            raise NotDeliveredError("is still busy with an earlier message")
        request = self._request(message)
        outcome: SimpleQueue[NotDeliveredError | None] = SimpleQueue()
        self._posting = threading.Thread(target=lambda: outcome.put(self._post(request)), name="webhook", daemon=True)
        self._posting.start()
        try:
            failure = outcome.get(timeout=self._timeout_s)
        except Empty:
            failure = self._too_slow()
        if failure is not None:
            raise failure

    def _request(self, message: AlertMessage) -> urllib.request.Request:
        body = message.to_slack() if self._form is BodyFormat.SLACK else message.to_json()
        stamp = str(int(self._clock()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "penstock",
            "Penstock-Id": message.id,
            "Penstock-Timestamp": stamp,
        }
        if self._secret is not None:
            headers["Penstock-Signature"] = f"sha256={signature(self._secret, stamp, body)}"
        return urllib.request.Request(self._url, data=body, headers=headers, method="POST")  # noqa: S310  # checked

    def _post(self, request: urllib.request.Request) -> NotDeliveredError | None:
        """Send a request; returns why it was not taken."""
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                answer.read(_MOST_READ)
                return None
        except urllib.error.HTTPError as exc:
            exc.close()
            redirects = ": a redirect is not followed" if 300 <= exc.code < 400 else ""
            return NotDeliveredError(f"answered with status {exc.code}{redirects}")
        except urllib.error.URLError as exc:
            reason = exc.reason
            if isinstance(reason, TimeoutError):
                return self._too_slow()
            text = reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
            return NotDeliveredError(f"cannot be reached: {text.lower()}")
        except TimeoutError:
            return self._too_slow()
        except (OSError, HTTPException, ValueError) as exc:
            return NotDeliveredError(f"did not answer: {type(exc).__name__}")

    def _too_slow(self) -> NotDeliveredError:
        return NotDeliveredError(f"did not answer within {self._timeout_s:g} s")


def signature(secret: str, stamp: str, body: bytes) -> str:
    """What a receiver computes itself, and compares, to know who sent a request."""
    return hmac.new(secret.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def receiver_of(config: OnErrorConfig) -> Receiver:
    """Make the receiver that a pipeline file names."""
    if config.command is not None:
        return CommandReceiver(config.command, config.timeout_s)
    assert config.url is not None
    return Webhook(config.url, form=config.format, secret=config.secret, timeout_s=config.timeout_s)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Follow none: the answer then is an error."""
