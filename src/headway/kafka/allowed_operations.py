"""The operations that brokers allow this login on a topic or group; asking needs no right to see ACLs."""

from collections.abc import Collection
from concurrent.futures import Future
from typing import TYPE_CHECKING

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from headway.kafka.coordinator import ask_for_operations, coordinator_client
from headway.kafka.missing_rights import is_refusal
from headway.settings.config import Config

if TYPE_CHECKING:
    from confluent_kafka.admin._group import ConsumerGroupDescription
    from confluent_kafka.admin._topic import TopicDescription

Allowed = frozenset[str] | None
"""The allowed operations, empty for a resource that this login cannot even describe; None if brokers do not report."""


def ask_about_topics(
    client: AdminClient, topics: Collection[str], within: float
) -> "dict[str, Future[TopicDescription]]":
    """Ask for the descriptions of topics, with the operations that this client may do on them."""
    if not topics:
        return {}
    return client.describe_topics(
        ck.TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=within
    )


def allowed_on_group(config: Config, group: str, within: float) -> Allowed:
    """Ask the coordinator of a group once. Raises the same errors as `allowed_in`."""
    client = coordinator_client(config)  # it lives, like its request, as long as this variable
    return allowed_in(ask_for_operations(client, group), within)


def allowed_in(answer: "Future[TopicDescription] | Future[ConsumerGroupDescription]", within: float) -> Allowed:
    """Wait for a description, and return the operations that it allows.

    Raises `TimeoutError` if no answer comes within this many seconds, and `KafkaException` for an error that is not
    about rights.
    """
    try:
        return allowed_by(answer.result(within))
    except ck.KafkaException as error:
        if is_refusal(error.args[0]):
            return frozenset()
        raise


def allowed_by(description: "TopicDescription | ConsumerGroupDescription") -> Allowed:
    """Return the operations that the description of a topic or group allows."""
    operations = description.authorized_operations
    return None if operations is None else frozenset(plain(each.name) for each in operations)


def allows(allowed: Allowed, operation: str) -> bool:
    """Return whether an operation is allowed; True if brokers do not report."""
    return allowed is None or plain(operation) in allowed


def plain(word: str) -> str:
    """Return one spelling for each of Kafka's words, which come as IdempotentWrite, IDEMPOTENT_WRITE and so on."""
    return word.replace("_", "").replace("-", "").lower()
