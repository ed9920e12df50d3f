"""Kafka's clients: what is the same for those that read and those that write, and what their errors mean."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from penstock.errors import ConfigError, OperatorError, PenstockError, RetryableError

SILENT = logging.getLogger("penstock.kafka.client")
"""The client tells each lost connection, again and again; what it comes to is raised."""

SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False

QUIET: Mapping[str, Any] = {
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
    "socket.connection.setup.timeout.ms": 10_000,
}
"""Settings that every client of ours has, unless the user says otherwise."""


ANSWER_S = 20.0
"""How long brokers may take to answer."""

_ATTEMPT_S = 2.0

_STATE = re.compile(r" \(after \d+ms in state [^()]*(?:\(s\)[^()]*)?\)$")

_Answer = TypeVar("_Answer")


class ConnectionErrors:
    """The client's `error_cb`: keeps why there is no connection, which no answer says. It is called while polling."""

    def __init__(self) -> None:
        """Nothing was heard."""
        self.error: Any = None

    def __call__(self, error: Any) -> None:
        """Keep an error; that no broker is left only follows from others."""
        from confluent_kafka import KafkaError as E

        if error.code() != E._ALL_BROKERS_DOWN:
            self.error = error

    @property
    def is_final(self) -> bool:
        """Whether a person has to change something before there is an answer."""
        return self.error is not None and not isinstance(failure(self.error, where="", doing=""), RetryableError)


class Answering:
    """Turns what the client raises into our errors."""

    def __init__(self, where: str, doing: str, heard: ConnectionErrors | None = None) -> None:
        """Say `doing` of what fails; of no answer the reason is what was heard."""
        self._where = where
        self._doing = doing
        self._heard = heard

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, exc: BaseException | None, __: object) -> None:
        from confluent_kafka import KafkaException

        if isinstance(exc, KafkaException):
            error = exc.args[0]
            if self._heard is not None and self._heard.error is not None and _is_unanswered(error):
                error = self._heard.error
            raise failure(error, where=self._where, doing=self._doing) from exc


def patiently(ask: Callable[[float], _Answer], heard: ConnectionErrors, poll: Callable[[], object]) -> _Answer:
    """Ask until there is an answer, for `ANSWER_S`, or until it was heard why there will be none.

    Args:
        ask: Takes how many seconds it may wait.
        poll: Has the client call `heard`.
    """
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + ANSWER_S
    while True:
        try:
            return ask(_ATTEMPT_S)
        except KafkaException as exc:
            poll()
            if not _is_unanswered(exc.args[0]) or heard.is_final or time.monotonic() > deadline:
                raise


def _is_unanswered(error: Any) -> bool:
    from confluent_kafka import KafkaError as E

    return error.code() in (E._TRANSPORT, E._TIMED_OUT, E._ALL_BROKERS_DOWN, E._WAIT_COORD)


def failure(error: Any, *, where: str, doing: str) -> PenstockError:
    """Say what an error of Kafka's means: the text is librdkafka's, which names no credentials."""
    from confluent_kafka import KafkaError as E

    code = error.code()
    # Behind the reason stands how long the connection was in which state, and how often that was said.
    what = f"Kafka cannot {doing}: {_STATE.sub('', error.str())}"
    if code in (E._AUTHENTICATION, E.SASL_AUTHENTICATION_FAILED):
        return OperatorError(f"Kafka cannot {doing}: it refuses the credentials", where=where, do="correct sasl.*")
    if code == E._SSL:
        return OperatorError(what, where=where, do="correct security.protocol and ssl.*")
    if code in (E.TOPIC_AUTHORIZATION_FAILED, E.GROUP_AUTHORIZATION_FAILED, E.CLUSTER_AUTHORIZATION_FAILED):
        return OperatorError(what, where=where, do="allow this user to read and describe the topics and its group")
    if code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return OperatorError(what, where=where, do="allow this user the transactional id penstock.<pipeline>")
    if code in (E._FENCED, E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH):
        return RetryableError(
            f"Kafka cannot {doing}: another producer of the pipeline has begun",
            where=where,
            do="let one run at a time publish; the name of a pipeline is to be its own in the whole cluster",
        )
    if code == E.MSG_SIZE_TOO_LARGE:
        return OperatorError(
            f"Kafka cannot {doing}: an event is larger than it takes",
            where=where,
            do="raise message.max.bytes in the connection's settings, and max.message.bytes of the topic",
        )
    if code in (E.OFFSET_OUT_OF_RANGE, E._AUTO_OFFSET_RESET):
        return OperatorError(
            "records that come next are gone: retention has deleted them, or the topic was made anew",
            where=where,
            do="`penstock resync --all` begins anew; keep records longer than a pipeline may stand still",
        )
    if code in (E._UNKNOWN_TOPIC, E.UNKNOWN_TOPIC_OR_PART, E._UNKNOWN_PARTITION):
        return OperatorError("the topic is not there any more", where=where, do="bring it back, or correct the topics")
    if code in (E._INVALID_ARG, E.INVALID_CONFIG):
        return bad_settings(error)
    return RetryableError(
        what, where=where, do="see whether the brokers are up, can be reached, and speak this security.protocol"
    )


def bad_settings(error: object) -> ConfigError:
    """The error for settings that the client does not take."""
    return ConfigError(
        "the settings for Kafka are not taken",
        where=_redacted_setting(str(error)),
        do="correct connections.<name>.settings, which are librdkafka's",
    )


def _redacted_setting(text: str) -> str:
    """What librdkafka says of a setting, which may repeat its value."""
    named = re.search(r"[a-z]+(?:\.[a-z]+)+", text)
    return f"setting {named[0]}" if named else "one of the settings"
