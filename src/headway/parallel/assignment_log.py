"""The log's word on which partitions a member has, once they have settled."""

import logging
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from headway.kafka.consumer.level_consumers import LevelConsumers

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.5  # seconds
_LONG = 5.0  # seconds; most groups have met by then
_MOST_TOPICS = 10


class AssignmentLog:
    """A look at a member's partitions now and then: the groups of the levels meet one after the other.

    What changes between two looks is told at a later one, so a rebalance is one line of the log.
    """

    def __init__(self, levels: LevelConsumers) -> None:
        self._levels = levels
        self._look_at = 0.0
        self._tell_at: float | None = None  # that the group has not met; infinite once that was told
        self._seen: frozenset[tuple[str, int]] | None = None
        self._told: frozenset[tuple[str, int]] | None = None

    def turn(self, now: float) -> None:
        """Tell of partitions that have been the same for two looks, and that were not told of."""
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY
        found = self._found()
        if found is None:
            self._tell_of_waiting(now)
        elif found == self._seen != self._told:
            self._told = found
            log.info("%s", sentence(found))
        self._seen = found

    def _tell_of_waiting(self, now: float) -> None:
        if self._tell_at is None:
            self._tell_at = now + _LONG
        elif now >= self._tell_at:
            self._tell_at = math.inf
            log.info(
                "This member waits for its group to meet. A group waits for a member that has died until its "
                "session.timeout.ms is over, and for one that is busy."
            )

    def _found(self) -> frozenset[tuple[str, int]] | None:
        """Return topics and numbers of the partitions; None before the group has ever said which they are."""
        if not any(level.membership.was_member for level in self._levels):
            return None
        return frozenset(
            level.client.addresses.name(each) for level in self._levels for each in tuple(level.membership.assigned)
        )


def sentence(partitions: Collection[tuple[str, int]]) -> str:
    """Return what the log says of these topics and numbers."""
    if not partitions:
        return (
            "This member has joined its group and has no partitions: other members have all, or Kafka lacks the topics."
        )
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        by_topic[topic].append(number)
    return f"This member has joined its group and has these partitions: {_listed(by_topic)}."


def _listed(by_topic: Mapping[str, list[int]]) -> str:
    named = list(by_topic.items())[:_MOST_TOPICS]
    more = f"; and those of {len(by_topic) - len(named)} more topics" if len(by_topic) > len(named) else ""
    return "; ".join(f"{topic}: {in_ranges(numbers)}" for topic, numbers in named) + more


def in_ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers in short.

    >>> in_ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
