"""Logs which partitions are assigned to this member, once its groups have finished rebalancing."""

import logging
import math
from collections import defaultdict
from collections.abc import Collection, Iterable

from headway.kafka.consumer.level_consumers import LevelConsumers

log = logging.getLogger(__name__)

_CHECK_EVERY = 0.5  # the time between two checks, in seconds
_LONG = 5.0  # how long a rebalance takes before it is logged that the member is waiting, in seconds; most take less
_MOST_TOPICS = 10  # the maximum number of topics that a log line lists


class AssignmentLog:
    """Checks a member's partitions twice a second, and logs them once two checks in a row find the same partitions.

    The groups of the levels rebalance one after the other. The log waits for two checks with the same result, so that
    all these rebalances together cause only one log line.
    """

    def __init__(self, levels: LevelConsumers) -> None:
        self._levels = levels
        self._check_at = 0.0
        # When to log that the member is waiting; infinite once that has been logged.
        self._log_wait_at: float | None = None
        self._seen: frozenset[tuple[str, int]] | None = None
        self._logged: frozenset[tuple[str, int]] | None = None

    def check(self, now: float) -> None:
        """Log the partitions if they are the same as in the last check and have not been logged yet."""
        if now < self._check_at:
            return
        self._check_at = now + _CHECK_EVERY
        found = self._found()
        if found is None:
            self._log_waiting(now)
        elif found == self._seen != self._logged:
            self._logged = found
            log.info("%s", sentence(found))
        self._seen = found

    def _log_waiting(self, now: float) -> None:
        if self._log_wait_at is None:
            self._log_wait_at = now + _LONG
        elif now >= self._log_wait_at:
            self._log_wait_at = math.inf
            log.info(
                "This member is waiting for its group to rebalance. A rebalance waits for members that are busy, and "
                "for members that have died until their session.timeout.ms has passed."
            )

    def _found(self) -> frozenset[tuple[str, int]] | None:
        """Return the topic and the number of each assigned partition, or None before the first assignment."""
        if not any(level.membership.was_member for level in self._levels):
            return None
        return frozenset(
            level.client.addresses.name(each) for level in self._levels for each in tuple(level.membership.assigned)
        )


def sentence(partitions: Collection[tuple[str, int]]) -> str:
    """Return the log message for an assignment. Each partition is given as a topic and a number."""
    if not partitions:
        return (
            "This member has joined its group and has no partitions. Either all partitions are assigned to other "
            "members, or the topics do not exist."
        )
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        by_topic[topic].append(number)
    listed = [f"{topic}: {in_ranges(numbers)}" for topic, numbers in list(by_topic.items())[:_MOST_TOPICS]]
    if len(by_topic) > _MOST_TOPICS:
        listed.append(f"and partitions of {len(by_topic) - _MOST_TOPICS} more topics")
    return f"This member has joined its group and has these partitions: {'; '.join(listed)}."


def in_ranges(numbers: Iterable[int]) -> str:
    """Format ascending numbers, with ranges for consecutive ones.

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
