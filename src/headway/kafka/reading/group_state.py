"""The state of a group, as its coordinator describes it."""

from typing import TYPE_CHECKING, Final

import confluent_kafka as ck

if TYPE_CHECKING:
    from confluent_kafka.admin._group import ConsumerGroupDescription

# Kafka 4 reports an unknown group, earlier brokers describe one that is dead. librdkafka's mock describes none.
NO_GROUP: Final = (ck.KafkaError.GROUP_ID_NOT_FOUND, ck.KafkaError._UNSUPPORTED_FEATURE)


def is_gone(described: "ConsumerGroupDescription") -> bool:
    """Return whether there is no such group, nor any commit of it."""
    return described.state is ck.ConsumerGroupState.DEAD
