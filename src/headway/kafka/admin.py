"""Lists, creates, describes and deletes Kafka's topics, and checks this client's permissions."""

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import confluent_kafka as ck
from confluent_kafka import cimpl
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from headway.core.connection_failures import without_counters
from headway.core.levels.naming import how_to_create, is_topic_name
from headway.core.permissions import Permission
from headway.errors import AuthorizationError, KafkaError, TopicExistsError
from headway.kafka.allowed_operations import (
    Allowed,
    allowed_by,
    allowed_in,
    allowed_on_group,
    allows,
    ask_about_topics,
)
from headway.kafka.binding.capi import await_connection
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.mock_cluster import mock_at
from headway.kafka.binding.retrying import retrying
from headway.kafka.binding.time_limits import TOPIC_CHANGED_WITHIN
from headway.kafka.missing_permissions import is_refusal, why_refused
from headway.kafka.topic_listing import TopicListing
from headway.settings.config import OWN_KEYS, Config

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata
    from confluent_kafka.admin._topic import TopicDescription

T = TypeVar("T")

# A second request can succeed if a broker restarts or a name resolves slowly, but not if every address refuses the
# connection.
_ONE_ANSWER_WITHIN = 1.0  # seconds
_ANY_ANSWER_WITHIN = 10.0
_PERMISSIONS_WITHIN = 3.0  # short, because some brokers never report permissions, for example librdkafka's mock cluster
_ASK_AGAIN_AFTER = 0.05
_BROKER_DEFAULT = -1
_START_ONE = (
    "Start a local broker with `headway broker start`, or give the address of your brokers (--bootstrap-servers, or "
    "the setting bootstrap.servers)."
)


class NewTopic(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int
    config: Mapping[str, str]


class Admin:
    """A client that lists and changes Kafka's topics; a thin layer over confluent_kafka's admin client.

    `config` has the same settings as for the other clients; Headway's own keys are ignored. `patience` is the number of
    seconds to keep trying while no broker is up, for example because the only broker restarts. Raises `ConfigError` for
    a setting that librdkafka does not know, or a value that it does not accept.
    """

    def __init__(self, config: Config, patience: float = 0.0) -> None:
        kafka = {key: value for key, value in config.items() if key not in OWN_KEYS}
        self._servers = kafka.get("bootstrap.servers")
        self._patience = patience
        self._connection = Connection()
        self._brokers = _Brokers(kafka.get("error_cb"))
        self._is_connected = False
        # The `KafkaError` that is raised gives the reason for a failure, which librdkafka would otherwise log twenty
        # times a second.
        self._settings: dict[str, Any] = {
            "log_level": 2,
            **kafka,
            "error_cb": self._brokers.note,
        }
        self._client = make_client(AdminClient, self._settings, self._connection)

    @property
    def client(self) -> AdminClient:
        """The client of confluent_kafka, connected to a broker. Raises `KafkaError` if no broker answers."""
        if not self._is_connected:
            self._connect()
        return self._client

    def cluster_id(self) -> str:
        """Return the id of the cluster, or an empty string if it has none. Raises `KafkaError` if no broker answers."""
        return self._until_answered(self._list_topics).cluster_id or ""

    def topics(self, wanted: str = "Describe", *, named: Collection[str] | None = None) -> TopicListing:
        """Return the topics that this client is permitted to see, each with its number of partitions.

        With `named`, only these topics are requested. Name the topics where you can, because listing all topics of a
        large cluster takes time.

        A look-up of a topic that is not in the returned listing sends a request to Kafka. The look-up raises
        `AuthorizationError` if this client is not permitted to describe the topic. `wanted` is the operation that this
        error names. Raises `KafkaError` if no broker answers.
        """
        if named is not None and not mock_at(self._servers):
            self._connect()
            return self._listing_of(named, wanted)
        metadata = self._until_answered(self._list_topics)
        seen = {name: len(about.partitions) for name, about in metadata.topics.items() if about.error is None}
        if named is not None:
            seen = {name: seen[name] for name in named if name in seen}
        return TopicListing(seen, self._partitions_of, wanted)

    def _listing_of(self, named: Collection[str], wanted: str) -> TopicListing:
        seen: dict[str, int] = {}
        missing: list[str] = []
        for topic, about in self._descriptions(named, _ANY_ANSWER_WITHIN).items():
            if about is None:
                missing.append(topic)
            elif not isinstance(about, ck.KafkaException):
                seen[topic] = len(about.partitions)
            elif not is_refusal(about.args[0]):
                raise self._not_described(topic, about) from about
        return TopicListing(seen, self._partitions_of, wanted, missing)

    def _partitions_of(self, topics: Collection[str], wanted: str) -> dict[str, int | None]:
        described = self._describe_topics(topics, _ANY_ANSWER_WITHIN, wanted)
        return {topic: None if about is None else len(about.partitions) for topic, about in described.items()}

    def _describe_topic(self, topic: str, within: float) -> "TopicDescription | None":
        return self._describe_topics([topic], within)[topic]

    def _describe_topics(
        self, topics: Collection[str], within: float, wanted: str = "Describe"
    ) -> "dict[str, TopicDescription | None]":
        """Return the description of each topic, or None if it does not exist.

        Raises `AuthorizationError` for a topic that this client is not permitted to describe.
        """
        found: dict[str, TopicDescription | None] = dict.fromkeys(topics)
        if mock_at(self._servers):
            return found
        for topic, about in self._descriptions(topics, within).items():
            if isinstance(about, ck.KafkaException):
                raise self._not_described(topic, about, wanted) from about
            found[topic] = about
        return found

    def _descriptions(
        self, topics: Collection[str], within: float
    ) -> "dict[str, TopicDescription | ck.KafkaException | None]":
        """Return each topic's description, None if the topic does not exist, or the error that Kafka returned for it.

        Names that no topic can have are left out.
        """
        found: dict[str, TopicDescription | ck.KafkaException | None] = {}
        for topic, answer in ask_about_topics(self._client, list(filter(is_topic_name, topics)), within).items():
            try:
                found[topic] = answer.result()
            except ck.KafkaException as error:
                found[topic] = None if error.args[0].code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART else error
        return found

    def _not_described(self, topic: str, error: ck.KafkaException, operation: str = "Describe") -> KafkaError:
        refused = why_refused(error.args[0], operation, self._settings, topic=topic)
        return refused or KafkaError(f"The topic {topic} cannot be described: {describe(error.args[0])}.")

    def missing(self, permissions: Collection[Permission]) -> Permission | None:
        """Return the first of these permissions that this client does not have, or None if it has all of them.

        Only permissions on topics and groups are checked. If the brokers do not report a permission, for example
        because the topic does not exist, the permission counts as granted. Raises `KafkaError` if no broker answers.
        """
        self._connect()
        if mock_at(self._servers):
            return None
        topics = list(dict.fromkeys(each.name for each in permissions if each.resource == "Topic"))
        groups = list(dict.fromkeys(each.name for each in permissions if each.resource == "Group"))
        asked = {
            ("Group", name): partial(allowed_on_group, self._settings, name, _PERMISSIONS_WITHIN) for name in groups
        }
        for name, answer in ask_about_topics(self._client, topics, _PERMISSIONS_WITHIN).items():
            asked["Topic", name] = partial(allowed_in, answer, _PERMISSIONS_WITHIN)
        allowed = {resource: _if_reported(ask) for resource, ask in asked.items()}
        return next(
            (each for each in permissions if not allows(allowed.get((each.resource, each.name)), each.operation)), None
        )

    def require(self, permissions: Collection[Permission]) -> None:
        """Raise `AuthorizationError` if `missing` finds that this client lacks one of these permissions."""
        if permission := self.missing(permissions):
            raise AuthorizationError(permission.missing(self._settings))

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return Kafka's id of each topic that exists. A topic that was deleted and created again has a new id.

        Topics are left out if the brokers do not support topic ids. Raises `KafkaError` if no broker answers.
        """
        if not topics:
            return {}
        self._connect()
        described = self._describe_topics(topics, _ANY_ANSWER_WITHIN)
        return {topic: str(about.topic_id) for topic, about in described.items() if about and about.topic_id}

    def why_not_writable(self, topic: str, known_within: float = 0.0) -> str | None:
        """Return a sentence that says why this client cannot write to a topic, or None if the brokers report no reason.

        If the topic is missing, it is requested again for up to `known_within` seconds. This creates the topic if the
        brokers create topics automatically. Raises `KafkaError` if no broker answers.
        """
        self._connect()
        if mock := mock_at(self._servers):
            return None if topic in mock.topics() else f"The topic {topic} does not exist. {how_to_create(topic)}"
        deadline = time.monotonic() + known_within
        try:
            while (about := self._describe_topic(topic, _PERMISSIONS_WITHIN)) is None and time.monotonic() < deadline:
                with contextlib.suppress(ck.KafkaException):
                    self._client.list_topics(topic, timeout=_ONE_ANSWER_WITHIN)
                time.sleep(_ASK_AGAIN_AFTER)
        except AuthorizationError:
            return Permission("Write", "Topic", topic).missing(self._settings)
        if about is None:
            return f"The topic {topic} does not exist. {how_to_create(topic)}"
        is_allowed = allows(allowed_by(about), "Write")
        return None if is_allowed else Permission("Write", "Topic", topic).missing(self._settings)

    def topic_settings(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic, or an empty dict if this client is not permitted to read them.

        The permission (DescribeConfigs) is checked first, because brokers log each request that they refuse.
        """
        if mock_at(self._servers):
            return {}
        asked = ConfigResource(ResourceType.TOPIC, topic)
        try:
            about = self._describe_topic(topic, _PERMISSIONS_WITHIN)
            if about is None or not allows(allowed_by(about), "DescribeConfigs"):
                return {}
            [answer] = self._client.describe_configs([asked], request_timeout=_PERMISSIONS_WITHIN).values()
            return {name: entry.value for name, entry in answer.result().items() if entry.value is not None}
        except (ck.KafkaException, AuthorizationError):
            return {}

    def serve(self) -> None:
        """Run the client's callbacks, which frees the memory of its queued connection reports."""
        self._client.poll(0)

    def broker_count(self) -> int:
        """Return the number of brokers in the cluster. Raises `KafkaError` if no broker answers."""
        return len(self._until_answered(self._list_topics).brokers)

    def create(
        self,
        names: Collection[str],
        partitions: int,
        replication_factor: int | None = None,
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Create Kafka topics that all have the same settings. See `create_topics`."""
        self.create_topics([NewTopic(name, partitions, config) for name in names], replication_factor)

    def create_topics(self, topics: Collection[NewTopic], replication_factor: int | None = None) -> None:
        """Create Kafka topics, and wait until the brokers list them.

        By default the brokers choose the replication factor.

        If one of the topics already exists, this raises `TopicExistsError` and creates none of them.
        """
        names = [topic.name for topic in topics]
        if existing := sorted(self.topics(named=names).seen):
            raise TopicExistsError(
                f"Kafka already has {_listed(existing)}, so no topic was created. Choose another name, or first "
                "delete the existing topics with `headway topics delete`."
            )
        if mock := mock_at(self._servers):
            for topic in topics:
                mock.create([topic.name], topic.partitions)
            return
        replicas = _BROKER_DEFAULT if replication_factor is None else replication_factor
        wanted = [cimpl.NewTopic(name, count, replicas, config=dict(config)) for name, count, config in topics]
        _wait(self._client.create_topics(wanted, operation_timeout=TOPIC_CHANGED_WITHIN), "Create", self._settings)
        # A client that is permitted to create topics is not necessarily permitted to see them.
        with contextlib.suppress(AuthorizationError):
            self._await_topics(names)

    def ensure_topic(self, topic: str, partitions: int, config: Mapping[str, str], wanted: str = "Read") -> int:
        """Create a Kafka topic if it does not exist, and return its number of partitions.

        Several processes can do this at the same time. An existing topic keeps its settings. `wanted` is the operation
        that an error about missing permissions names. Raises `KafkaError` if the topic can be neither found nor
        created.
        """
        if (count := self.topics(wanted).get(topic)) is not None:
            return count
        try:
            self.create([topic], partitions, config=config)
        except TopicExistsError:  # another process has just created it, perhaps with more or fewer partitions
            self._await_topics([topic])
        return self.topics(wanted).get(topic) or partitions

    def _await_topics(self, names: Collection[str]) -> None:
        """Wait until the brokers list topics that have just been created."""
        deadline = time.monotonic() + TOPIC_CHANGED_WITHIN
        while len(self.topics(named=names).look_up(names)) < len(names) and time.monotonic() < deadline:
            time.sleep(_ASK_AGAIN_AFTER)

    def delete(self, topics: Collection[str]) -> None:
        """Delete Kafka topics with all their records, and wait until the brokers no longer list them."""
        _wait(
            self._client.delete_topics(list(topics), operation_timeout=TOPIC_CHANGED_WITHIN), "Delete", self._settings
        )
        deadline = time.monotonic() + TOPIC_CHANGED_WITHIN
        while self.topics(named=topics).seen and time.monotonic() < deadline:
            time.sleep(_ASK_AGAIN_AFTER)

    def _connect(self) -> None:
        """Wait until a broker answers.

        This comes before each request about named topics. Without a connection such a request would wait for its whole
        time limit, and its error would not say why the connection failed.
        """
        self._until_answered(lambda: await_connection(self._client, _ONE_ANSWER_WITHIN))

    def _list_topics(self) -> "ClusterMetadata":
        metadata: ClusterMetadata = self._client.list_topics(timeout=_ONE_ANSWER_WITHIN)
        return metadata

    def _until_answered(self, ask: Callable[[], T]) -> T:
        """Call `ask` until a broker answers, and return the answer. Raises `KafkaError` if none answers in time."""
        hopeless_at = time.monotonic() + max(self._patience, _ONE_ANSWER_WITHIN)
        try:
            answer = retrying(
                lambda _: self._ask_once(ask),
                max(self._patience, _ANY_ANSWER_WITHIN),
                # A broker that closes connections is running. Another attempt shows whether the broker refuses this
                # client or is only restarting.
                is_over=lambda: (
                    self._brokers.none_is_up and not self._connection.is_ended and time.monotonic() > hopeless_at
                ),
            )
        except ck.KafkaException as error:
            raise self._unreachable() from error
        self._brokers.none_is_up = False
        self._is_connected = True
        return answer

    def _ask_once(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except ck.KafkaException:
            self._client.poll(0)  # runs the error callback, which records why the connection failed
            self._connection.check(self._client)
            raise

    def _unreachable(self) -> KafkaError:
        return self._connection.refusal_so_far() or KafkaError(
            f"Kafka cannot be reached at {self._servers} ({self._connection.reason}). {_START_ONE}"
        )


class _Brokers:
    """Keeps track of whether all brokers are down, according to a client's error reports.

    This is a separate object because the client refers to it; a reference from the client to `Admin` would be a
    reference cycle.
    """

    def __init__(self, on_error: Callable[[ck.KafkaError], object] | None) -> None:
        self.none_is_up = False
        self._on_error = on_error  # the `error_cb` in the user's settings

    def note(self, error: ck.KafkaError) -> None:
        if error.code() == ck.KafkaError._ALL_BROKERS_DOWN:
            self.none_is_up = True
        if self._on_error:
            self._on_error(error)


def _if_reported(ask: Callable[[], Allowed]) -> Allowed:
    """Return the operations that `ask` reports as allowed.

    Returns None if the request fails, as if the brokers did not report operations.
    """
    try:
        return ask()
    except (TimeoutError, ck.KafkaException):
        return None


def describe(error: ck.KafkaError) -> str:
    """Return librdkafka's text for an error. Counters are removed, so that equal errors have equal texts."""
    return without_counters(error.str())


def _wait(futures: Mapping[str, Future[None]], operation: str, config: Config) -> None:
    refused: dict[str, list[str]] = {}
    kind: type[KafkaError] = KafkaError
    for name, future in sorted(futures.items()):
        try:
            future.result()
        except ck.KafkaException as error:
            if missing := why_refused(error.args[0], operation, config, topic=name):
                raise missing from error
            if error.args[0].code() == ck.KafkaError.TOPIC_ALREADY_EXISTS:
                kind = TopicExistsError
            refused.setdefault(error.args[0].str().rstrip("."), []).append(name)
    if refused:
        reasons = "; ".join(f"{_listed(names)} ({reason})" for reason, names in refused.items())
        raise kind(f"Kafka did not {operation.lower()} {reasons}.")


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)
