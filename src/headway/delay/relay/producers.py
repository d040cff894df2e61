"""A relay's producers: how they are created, fenced off and closed.

The generation of the consumer group fences off a relay that was expelled from the group (KIP-447). A relay stores the
transactional ids of its producers, so that the next relay can end transactions that were left open.
"""

import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from headway.delay.topic_names import TopicNames
from headway.delay.topics import MAX_MESSAGE_BYTES
from headway.errors import KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import Partition, is_of_a_member
from headway.kafka.binding.error_causes import is_out_of_place
from headway.kafka.binding.factory import together
from headway.kafka.consumer.relay_consumer import RelayConsumer
from headway.kafka.consumer.standing import not_a_member
from headway.kafka.producer.client import ProducerClient
from headway.kafka.producer.transactional_writer import TransactionalWriter
from headway.settings.connection_settings import connection_of

WRITTEN_WITHIN = 30.0
"""How long records can be unacknowledged before they count as lost, in seconds."""
_CONNECTED_WITHIN = 10.0
_CLOSE_WITHIN = 0.1
_AT_A_TIME = 8

_DEFAULTS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 0,
    # Brokers allow at most 5 requests in flight per partition. With 5, librdkafka (2.16) uses a whole core until an
    # answer arrives.
    "max.in.flight": 4,
    "message.max.bytes": MAX_MESSAGE_BYTES,
    "queue.buffering.max.messages": 1_000_000,
}
_TRANSACTIONAL: Mapping[str, Any] = {
    # If a relay is killed, the next relay of its partitions, and the consumers of its targets, wait for this long.
    "transaction.timeout.ms": 10_000,
    # While the broker writes the markers of the previous transaction, the client must retry its requests.
    # While librdkafka flushes, it does not linger. So this delays no record, because each round ends with a flush, and
    # librdkafka sends a round in a few large batches. Without it, librdkafka's threads take three times the CPU time.
    "linger.ms": 5,
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 100,
}

RelayOffsets = Mapping[Partition, int]


def producer_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a relay's producers, which are those for the connection, compression and transactions."""
    own = {key: value for key, value in config.items() if key.startswith(("compression.", "transaction."))}
    return {**connection_of(config), **own}


def ids_begin_with(names: TopicNames) -> str:
    """Return the prefix of the transactional ids of a scheduler's relays."""
    return f"{names.name}-relay-"


def new_id(names: TopicNames) -> str:
    """Return a transactional id that no other relay has."""
    return f"{ids_begin_with(names)}{uuid.uuid4().hex[:12]}"


def member_of(consumer: RelayConsumer) -> bytes:
    """Return the group's current metadata, which Kafka uses to fence a commit.

    Raises `KafkaError` if the relay is not a member of the group.
    """
    member = consumer.group_metadata
    if not is_of_a_member(member):
        raise not_a_member("The relay")
    return member


def connected_client(config: Mapping[str, Any], topic: str) -> ProducerClient:
    """Create a client, and wait until it has connected. `topic` can be any existing topic.

    Raises `KafkaError` if no broker answers.
    """
    client = ProducerClient({**_DEFAULTS, **config})
    try:
        connect_now(client, topic)
    except KafkaError:
        client.close(0)
        raise
    return client


def connect_now(client: ProducerClient, topic: str) -> None:
    """Connect a client now. Otherwise librdkafka would retry work that needs a connection only every half second."""
    client.partitions(topic, _CONNECTED_WITHIN)


def close_at_once(client: ProducerClient) -> None:
    """Close a client that has not sent any records."""
    client.close(0)


def why_not_writable(config: Mapping[str, Any], topic: str) -> str | None:
    """Return a sentence that explains why a topic refuses records, or None if the brokers give no reason.

    Raises `KafkaError` if no broker answers.
    """
    reach = {key: value for key, value in config.items() if not key.startswith("transaction")}
    return Admin(reach).why_not_writable(topic)


def writer_for(client: ProducerClient, config: Mapping[str, Any]) -> TransactionalWriter:
    """Create the writer for a client's transactions. `config` has the settings of the relay's producers."""
    return TransactionalWriter(client, partial(why_not_writable, config), WRITTEN_WITHIN)


def fenced(config: Mapping[str, Any], transactional_id: str, topic: str) -> ProducerClient:
    """Create a transactional client, and fence off all other clients with this id.

    `topic` can be any existing topic.
    """
    client = connected_client({**_TRANSACTIONAL, **config, "transactional.id": transactional_id}, topic)
    try:
        writer_for(client, config).fence()
    except KafkaError:
        client.close(0)
        raise
    return client


def commit(writer: TransactionalWriter, offsets: RelayOffsets, member: bytes) -> None:
    """Commit a transaction with offsets, so that an expelled relay is fenced off. The calling thread might hang."""
    writer.add_offsets({each: (offset, b"") for each, offset in offsets.items()}, member)
    writer.commit()


def abort(writer: TransactionalWriter) -> None:
    """If a transaction is open, abort it and thereby discard its records."""
    if writer.transactions.hangs():
        return
    try:
        writer.abort()
    except KafkaError as refused:
        if not is_out_of_place(refused):
            raise


def end_transactions(config: Mapping[str, Any], transactional_ids: Iterable[str], topic: str) -> None:
    """End the open transactions of these producers, and fence the producers off. `topic` can be any existing topic."""
    ids = list(transactional_ids)
    for some in (ids[first : first + _AT_A_TIME] for first in range(0, len(ids), _AT_A_TIME)):
        for client in together(*(partial(fenced, config, each, topic) for each in some), close=close_at_once):
            client.close(_CLOSE_WITHIN)
