"""The standing of a group's member, which follows from the answer to its commit.

Kafka refuses a commit for three reasons. The member was expelled: others have its partitions, and it must join again.
Or it was replaced by another member with the same `group.instance.id`, and must not come back. Or it is behind: the
group rebalances or has done so, and the commit may succeed once the member knows.
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
    # The member's heartbeat may be on its way with the new generation.
    ck.KafkaError.ILLEGAL_GENERATION: Standing.BEHIND,
    ck.KafkaError.STALE_MEMBER_EPOCH: Standing.BEHIND,
    ck.KafkaError.REBALANCE_IN_PROGRESS: Standing.BEHIND,
}


def standing(error: HeadwayError) -> Standing:
    """Return the member's standing that follows from a refused commit, or `UNKNOWN` after any other error."""
    cause = librdkafka_error(error)
    return Standing.UNKNOWN if cause is None else _STANDINGS.get(cause.code(), Standing.UNKNOWN)


def not_a_member(who: str) -> KafkaError:
    """Return the error for a consumer that is not in its group at the moment, so that it must not commit."""
    error = KafkaError(f"{who} is not a member of its group now.")
    error.__cause__ = ck.KafkaException(ck.KafkaError(ck.KafkaError.ILLEGAL_GENERATION))
    return error
