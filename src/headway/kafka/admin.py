"""The topics that Kafka has, to list, create and delete, and its brokers."""

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from headway.config import OWN_KEYS
from headway.core.refusals import without_counters
from headway.core.topics import how_to_create
from headway.errors import KafkaError
from headway.kafka.connection import Connection
from headway.kafka.making import make_client

# While a broker restarts or a name resolves slowly, asking again helps; when every address refuses, it does not.
_ASK_FOR = 1.0
_GIVE_UP_AFTER = 10.0
_CREATE_WITHIN = 30.0
_ASK_AGAIN_AFTER = 0.05
_BROKER_DEFAULT = -1
_MISSING = "does not exist"
_FORBIDDEN = "may not be written"
_START_ONE = (
    "Start a local one with `headway broker start`, or say where yours is (--bootstrap-servers, or the setting "
    "bootstrap.servers)."
)


class Admin:
    """Asks Kafka for its topics and changes them; a thin driver of confluent_kafka's admin client.

    `config` is as for the other clients; Headway's own keys are left out. So many seconds of `patience` it has with
    brokers of which none is up, as one that restarts. Raises `ConfigError` for a setting that librdkafka does not know
    or take.
    """

    def __init__(self, config: Mapping[str, Any], patience: float = 0.0) -> None:
        kafka = {key: value for key, value in config.items() if key not in OWN_KEYS}
        self._servers = kafka.get("bootstrap.servers")
        self._patience = patience
        self._connection = Connection()
        self._none_is_up = False
        self._is_connected = False
        # The reason for a failure is in our error; librdkafka would repeat it twenty times a second.
        self._settings: dict[str, Any] = {"log_level": 2, **kafka, "error_cb": _both(self._note, kafka.get("error_cb"))}
        self._client = make_client(AdminClient, self._settings, self._connection)

    @property
    def client(self) -> AdminClient:
        """The client itself, which knows the brokers. Raises `KafkaError` when none answers."""
        if not self._is_connected:
            self._ask_patiently()
        return self._client

    def topics(self) -> dict[str, int]:
        """The Kafka topics and how many partitions each has. Raises `KafkaError` when no broker answers."""
        metadata = self._ask_patiently()
        return {name: len(about.partitions) for name, about in metadata.topics.items() if about.error is None}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return Kafka's id of each topic that exists, where its brokers give one: another one when it is made anew.

        Raises `KafkaError` when no broker answers.
        """
        self._ask_patiently()
        found: dict[str, str] = {}
        asked = self._client.describe_topics(ck.TopicCollection(list(topics)), request_timeout=_GIVE_UP_AFTER)
        for topic, answer in asked.items():
            try:
                about = answer.result()
            except ck.KafkaException as error:
                if error.args[0].code() != ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise KafkaError(f"The topic {topic} cannot be described: {describe(error.args[0])}.") from error
            else:
                found |= {topic: str(about.topic_id)} if about.topic_id else {}
        return found

    def why_not_writable(self, topic: str, known_within: float = 0.0) -> str | None:
        """Return a sentence about what keeps this client from writing to a topic; None if the brokers know of nothing.

        A topic that is missing is asked for again for `known_within` seconds, and created where brokers do so when
        they are asked. Raises `KafkaError` when no broker answers.
        """
        deadline = time.monotonic() + known_within
        while (reason := self._why_not_writable(topic)) == _MISSING and time.monotonic() < deadline:
            with contextlib.suppress(ck.KafkaException):
                self._client.list_topics(topic, timeout=_ASK_FOR)
            time.sleep(_ASK_AGAIN_AFTER)
        if reason is None:
            return None
        todo = how_to_create(topic) if reason == _MISSING else "Grant Write on it to the principal of this client."
        return f"The topic {topic} {reason}. {todo}"

    def _why_not_writable(self, topic: str) -> str | None:
        self._ask_patiently()
        [asked] = self._client.describe_topics(
            ck.TopicCollection([topic]), include_authorized_operations=True, request_timeout=_GIVE_UP_AFTER
        ).values()
        try:
            allowed = asked.result().authorized_operations
        except ck.KafkaException as error:
            code = error.args[0].code()
            if code == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return _MISSING
            if code == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return _FORBIDDEN
            raise KafkaError(f"The topic {topic} cannot be described: {describe(error.args[0])}.") from error
        # None where the brokers do not tell.
        return _FORBIDDEN if allowed is not None and AclOperation.WRITE not in allowed else None

    def serve(self) -> None:
        """Let go of what the client has to say of its connections meanwhile."""
        self._client.poll(0)

    def broker_count(self) -> int:
        """How many brokers the one that answers knows. Raises `KafkaError` when none answers."""
        return len(self._ask_patiently().brokers)

    def create(
        self,
        topics: Collection[str],
        partitions: int,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create Kafka topics, with the broker's own replication factor by default.

        Raises `KafkaError`, and creates none, when one of them exists.
        """
        if existing := sorted(self.topics().keys() & set(topics)):
            raise KafkaError(
                f"Kafka has {_listed(existing)} already, and nothing was created. Choose another name, or delete what "
                "is there first (`headway topics delete`)."
            )
        replicas = _BROKER_DEFAULT if replication_factor is None else replication_factor
        wanted = [NewTopic(name, partitions, replicas, config=dict(config or {})) for name in topics]
        _wait(self._client.create_topics(wanted, operation_timeout=_CREATE_WITHIN), "create")

    def delete(self, topics: Collection[str]) -> None:
        """Delete Kafka topics with all their records, and wait until the brokers have heard of it."""
        _wait(self._client.delete_topics(list(topics), operation_timeout=_CREATE_WITHIN), "delete")
        deadline = time.monotonic() + _CREATE_WITHIN
        while self.topics().keys() & set(topics) and time.monotonic() < deadline:
            time.sleep(_ASK_AGAIN_AFTER)

    def _ask_patiently(self) -> Any:
        began = time.monotonic()
        while True:
            try:
                metadata = self._client.list_topics(timeout=_ASK_FOR)
            except ck.KafkaException as error:
                self._client.poll(0)  # serves the error callback, which knows the cause
                self._connection.check(self._client)
                within = self._patience if self._none_is_up else max(self._patience, _GIVE_UP_AFTER)
                if time.monotonic() - began > max(within, _ASK_FOR):
                    raise self._unreachable() from error
                time.sleep(_ASK_AGAIN_AFTER)
            else:
                self._none_is_up = False
                self._is_connected = True
                return metadata

    def _note(self, error: ck.KafkaError) -> None:
        if error.code() == ck.KafkaError._ALL_BROKERS_DOWN:
            self._none_is_up = True

    def _unreachable(self) -> KafkaError:
        return self._connection.refusal_so_far() or KafkaError(
            f"Kafka cannot be reached at {self._servers} ({self._connection.reason}). {_START_ONE}"
        )


def describe(error: ck.KafkaError) -> str:
    """What librdkafka says of a connection, without the counters that make each report another one."""
    return without_counters(error.str())


def _both(ours: Callable[[ck.KafkaError], None], users: Callable[[ck.KafkaError], object] | None) -> Any:
    def note(error: ck.KafkaError) -> None:
        ours(error)
        if users:
            users(error)

    return note


def _wait(futures: Mapping[str, Future[None]], action: str) -> None:
    refused: dict[str, list[str]] = {}
    for name, future in sorted(futures.items()):
        try:
            future.result()
        except ck.KafkaException as error:
            refused.setdefault(error.args[0].str().rstrip("."), []).append(name)
    if refused:
        reasons = "; ".join(f"{_listed(names)} ({reason})" for reason, names in refused.items())
        raise KafkaError(f"Kafka did not {action} {reasons}.")


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)
