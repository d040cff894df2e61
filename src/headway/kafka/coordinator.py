"""Sends requests to a group's coordinator with an admin client, and avoids two defects of librdkafka 2.16.

The first defect: if such a request times out while the coordinator's broker is away, librdkafka aborts the process when
the broker returns. So each request has the longest time-out that librdkafka accepts. The caller decides how long to
wait, and then abandons the answer.

The second defect: the client keeps sending the request to a broker that is no longer the coordinator. So after a
failure, the request is sent again with a new client. See docs/design/librdkafka.md.
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

_ENDLESS = 3600.0  # seconds; the longest time-out that librdkafka accepts


def coordinator_client(config: Config) -> AdminClient:
    """Return a client for requests to coordinators. Only critical messages of its log are passed on."""
    return make_client(AdminClient, {**config, "log_level": 2})


def ask_for_members(client: AdminClient, group: str) -> "Future[ConsumerGroupDescription]":
    """Ask the coordinator for the description of a group, which includes its members."""
    return ask_for_members_of(client, [group])[group]


def ask_for_members_of(client: AdminClient, groups: Collection[str]) -> "Described":
    """Ask the coordinators for the descriptions of several groups at once."""
    answers: Described = client.describe_consumer_groups(list(groups), request_timeout=_ENDLESS)
    return answers


def ask_for_operations(client: AdminClient, group: str) -> "Future[ConsumerGroupDescription]":
    """Ask for the description of a group, which includes the operations that this client may perform on it."""
    answers: Described = client.describe_consumer_groups(
        [group], include_authorized_operations=True, request_timeout=_ENDLESS
    )
    return answers[group]


def ask_for_offsets(client: AdminClient, group: str) -> Future[ck.ConsumerGroupTopicPartitions]:
    """Ask for all offsets that a group has committed."""
    asked = [ck.ConsumerGroupTopicPartitions(group)]
    answers: CommitAnswers = client.list_consumer_group_offsets(asked, request_timeout=_ENDLESS)
    return answers[group]
