"""Asks a group's coordinator with an admin client, in spite of two faults of librdkafka 2.16.

If the time-out of such a question ends while that broker is away, the process is aborted when the broker comes back. So
each question has the longest time-out that librdkafka accepts; its caller waits as long as it likes, and then abandons
the answer. The second fault is that the client keeps asking a broker that is no longer the coordinator. So a question
that failed is asked by a new client. See docs/design/librdkafka.md.
"""

from collections.abc import Collection
from concurrent.futures import Future
from typing import TYPE_CHECKING

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from headway.kafka.binding.factory import make_client
from headway.settings.config import Config

if TYPE_CHECKING:
    from confluent_kafka.admin._group import ConsumerGroupDescription

    Described = dict[str, Future[ConsumerGroupDescription]]
    CommitAnswers = dict[str, Future[ck.ConsumerGroupTopicPartitions]]

_ENDLESS = 3600.0  # seconds, the longest time-out that librdkafka accepts


def coordinator_client(config: Config) -> AdminClient:
    """Return a client for questions to coordinators, of which librdkafka logs next to nothing."""
    return make_client(AdminClient, {**config, "log_level": 2})


def ask_for_members(client: AdminClient, group: str) -> "Future[ConsumerGroupDescription]":
    """Ask for the description of a group."""
    return ask_for_members_of(client, [group])[group]


def ask_for_members_of(client: AdminClient, groups: Collection[str]) -> "Described":
    """Ask for the descriptions of groups, all at once."""
    answers: Described = client.describe_consumer_groups(list(groups), request_timeout=_ENDLESS)
    return answers


def ask_for_operations(client: AdminClient, group: str) -> "Future[ConsumerGroupDescription]":
    """Ask for the description of a group, with the operations that this client may do on it."""
    answers: Described = client.describe_consumer_groups(
        [group], include_authorized_operations=True, request_timeout=_ENDLESS
    )
    return answers[group]


def ask_for_offsets(client: AdminClient, group: str) -> Future[ck.ConsumerGroupTopicPartitions]:
    """Ask for all offsets that a group has committed."""
    asked = [ck.ConsumerGroupTopicPartitions(group)]
    answers: CommitAnswers = client.list_consumer_group_offsets(asked, request_timeout=_ENDLESS)
    return answers[group]
