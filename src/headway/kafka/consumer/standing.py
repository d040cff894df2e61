"""The standing of a group's member, as the answer to its commit tells.

Kafka knows three kinds of refusal. The member was expelled: others have its partitions, and it has to join again. Or
the member was replaced by another one with the same `group.instance.id`, and must not come back. Or it is behind: the
group meets, or has met again, and the commit may succeed once the member has heard of that.
"""

from enum import Enum

import confluent_kafka as ck

from headway.errors import HeadwayError, KafkaError
from headway.kafka.binding.error_causes import cause_of


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
    """Return the member's standing by this refusal of a commit, `UNKNOWN` if it does not tell."""
    cause = cause_of(error)
    return Standing.UNKNOWN if cause is None else _STANDINGS.get(cause.code(), Standing.UNKNOWN)


def not_a_member(who: str) -> KafkaError:
    """Return the error for a consumer between two memberships, for which nothing may be committed."""
    error = KafkaError(f"{who} is not a member of its group now.")
    error.__cause__ = ck.KafkaException(ck.KafkaError(ck.KafkaError.ILLEGAL_GENERATION))
    return error
