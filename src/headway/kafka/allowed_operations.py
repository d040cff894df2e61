"""Asks brokers which operations this client may perform on a topic or group.

Any client is permitted to ask this, even if it is not permitted to read ACLs.
"""

from collections.abc import Collection
from concurrent.futures import Future
from typing import TYPE_CHECKING

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from headway.kafka.coordinator import ask_for_operations, coordinator_client
from headway.kafka.missing_permissions import is_refusal
from headway.settings.config import Config

if TYPE_CHECKING:
    from confluent_kafka.admin._group import ConsumerGroupDescription
    from confluent_kafka.admin._topic import TopicDescription

Allowed = frozenset[str] | None
"""The operations that this client may perform.

The set is empty if the client is not even permitted to describe the topic or group. The value is None if the brokers do
not report operations.
"""


def ask_about_topics(
    client: AdminClient, topics: Collection[str], within: float
) -> "dict[str, Future[TopicDescription]]":
    """Ask for the descriptions of topics, which include the operations that this client may perform on them."""
    if not topics:
        return {}
    return client.describe_topics(
        ck.TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=within
    )


def allowed_on_group(config: Config, group: str, within: float) -> Allowed:
    """Ask the coordinator of a group once which operations this client may perform on the group.

    Raises the same errors as `allowed_in`.
    """
    # The request ends when the client is destroyed, so this variable keeps it alive.
    client = coordinator_client(config)
    return allowed_in(ask_for_operations(client, group), within)


def allowed_in(answer: "Future[TopicDescription] | Future[ConsumerGroupDescription]", within: float) -> Allowed:
    """Wait for the description of a topic or group, and return the operations that this client may perform on it.

    Raises `TimeoutError` if no answer arrives within `within` seconds, and `KafkaException` for an error other than a
    missing permission.
    """
    try:
        return allowed_by(answer.result(within))
    except ck.KafkaException as error:
        if is_refusal(error.args[0]):
            return frozenset()
        raise


def allowed_by(description: "TopicDescription | ConsumerGroupDescription") -> Allowed:
    """Return the operations that this client may perform, according to the description of a topic or group."""
    operations = description.authorized_operations
    return None if operations is None else frozenset(plain(each.name) for each in operations)


def allows(allowed: Allowed, operation: str) -> bool:
    """Return whether an operation is allowed. If the brokers do not report operations, this is True."""
    return allowed is None or plain(operation) in allowed


def plain(word: str) -> str:
    """Return a common spelling of a term for which Kafka uses several, such as IdempotentWrite and IDEMPOTENT_WRITE."""
    return word.replace("_", "").replace("-", "").lower()
