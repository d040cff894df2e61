"""Interprets the description of a group and its members, as the group's coordinator returns it."""

from typing import TYPE_CHECKING, Final, NamedTuple

import confluent_kafka as ck

from headway.kafka.binding.capi import Partition

if TYPE_CHECKING:
    from confluent_kafka.admin._group import ConsumerGroupDescription

# Kafka 4 reports an unknown group as an error, and earlier brokers report it as a dead group. librdkafka's mock cluster
# does not describe groups.
NO_GROUP: Final = (ck.KafkaError.GROUP_ID_NOT_FOUND, ck.KafkaError._UNSUPPORTED_FEATURE)


def is_gone(described: "ConsumerGroupDescription") -> bool:
    """Return whether the group does not exist and has no commits."""
    return described.state is ck.ConsumerGroupState.DEAD


class Member(NamedTuple):
    """A member of a group: its `client.id`, and the address from which it joined."""

    client_id: str
    host: str

    def __str__(self) -> str:
        return f"{self.client_id}@{self.host}"


def members_by_partition(described: "ConsumerGroupDescription") -> dict[Partition, Member]:
    """Return the member to which each partition is assigned now.

    The result is empty while a classic group rebalances.
    """
    return {
        (each.topic, each.partition): Member(member.client_id, member.host.removeprefix("/"))
        for member in described.members
        for each in member.assignment.topic_partitions
    }
