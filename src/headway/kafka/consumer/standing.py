"""Determines a member's standing in its group from the answer to a commit.

Kafka refuses a commit for one of three reasons. First, the member was expelled: other members have its partitions, and
the member must join again. Second, the member was replaced by another member with the same `group.instance.id`, and
must not join again. Third, the member is behind: the group is rebalancing or has rebalanced, and the commit may succeed
when the member has noticed this.
"""

from enum import Enum

import confluent_kafka as ck

from headway.errors import HeadwayError, KafkaError
from headway.kafka.binding.error_causes import librdkafka_error


class Standing(Enum):
    """The standing of a member in its group."""

    UNKNOWN = "unknown"
    BEHIND = "behind"
    EXPELLED = "expelled"
    REPLACED = "replaced"


_STANDINGS = {
    ck.KafkaError.UNKNOWN_MEMBER_ID: Standing.EXPELLED,
    ck.KafkaError.FENCED_MEMBER_EPOCH: Standing.EXPELLED,
    ck.KafkaError.FENCED_INSTANCE_ID: Standing.REPLACED,
    # The answer to the member's last heartbeat, which contains the new generation, may still be on its way.
    ck.KafkaError.ILLEGAL_GENERATION: Standing.BEHIND,
    ck.KafkaError.STALE_MEMBER_EPOCH: Standing.BEHIND,
    ck.KafkaError.REBALANCE_IN_PROGRESS: Standing.BEHIND,
}


def standing(error: HeadwayError) -> Standing:
    """Return the standing of a member whose commit failed with this error. Errors with other causes give `UNKNOWN`."""
    cause = librdkafka_error(error)
    return Standing.UNKNOWN if cause is None else _STANDINGS.get(cause.code(), Standing.UNKNOWN)


def not_a_member(who: str) -> KafkaError:
    """Return the error for a consumer that must not commit, because it is not a member of its group at the moment."""
    error = KafkaError(f"{who} is not a member of its group at the moment.")
    error.__cause__ = ck.KafkaException(ck.KafkaError(ck.KafkaError.ILLEGAL_GENERATION))
    return error
