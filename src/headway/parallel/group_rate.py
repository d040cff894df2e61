"""A member's part of its group's rate limits: the share of them that the member has of the partitions.

All members divide by the same count, the partitions of the subscription in Kafka. No partition has two members, so
the group keeps the limit whoever joins and leaves, without any message between members.
"""

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from headway.config import Config
from headway.connection_settings import connection_of
from headway.core.levels.naming import LevelSubscription, matches
from headway.errors import HeadwayError
from headway.kafka.admin import Admin
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.runtime.background import in_background
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

# Topics that get more partitions make their group meet, and members ask then; this is for a member that keeps its own.
_ASK_EVERY = 60.0  # seconds
_ASK_AGAIN_AFTER = 1.0


class SharedRate(Protocol):
    """A rate of which this member has a share, from 0 to 1."""

    @property
    def is_shared(self) -> bool: ...
    def share(self, share: float, now: float) -> None: ...


class GroupRate:
    """The keeper of one member's share, for the control thread; without a rate to share it does nothing.

    The share is 0 until Kafka has said how many partitions there are: a moment after the first were assigned.
    """

    def __init__(
        self,
        config: Config,
        levels: LevelConsumers,
        rates: Sequence[SharedRate | None],
        lock: threading.Lock,
        wake: Wakeup,
    ) -> None:
        self._config = config
        self._levels = levels
        self._rates = [rate for rate in rates if rate is not None and rate.is_shared]
        self._lock = lock
        self._wake = wake
        self._subscriptions: Sequence[LevelSubscription] = ()
        self._assigned = 0
        self._total: int | None = None
        self._asked: Future[int] | None = None
        self._ask_at = math.inf
        self._has_warned = False
        self._share = 0.0
        for rate in self._rates:
            rate.share(0.0, time.monotonic())

    def subscribe(self, subscriptions: Sequence[LevelSubscription]) -> None:
        """Note which topics the members share."""
        self._subscriptions = subscriptions

    def turn(self, now: float) -> None:
        """Let this member start the part that it has of the partitions; never waits."""
        if not self._rates:
            return
        assigned = sum(len(level.assigned) for level in self._levels)
        if assigned != self._assigned:
            self._assigned = assigned
            self._ask_at = now  # topics that have more partitions than before make a group share them anew
        if self._asked is not None and self._asked.done():
            self._note(self._asked, now)
        if self._asked is None and assigned and now >= self._ask_at:
            self._asked = in_background(self._count)
            self._asked.add_done_callback(lambda _: self._wake.set())
            self._ask_at = now + _ASK_EVERY
        share = min(1.0, assigned / self._total) if self._total else 0.0
        if share != self._share:
            self._share = share
            with self._lock:
                for rate in self._rates:
                    rate.share(share, now)
            log.info("This member has %d of %s partitions, and that part of the rates to share.", assigned, self._total)

    def _note(self, asked: "Future[int]", now: float) -> None:
        self._asked = None
        error = asked.exception()
        if error is None:
            self._total = asked.result()
            return
        self._ask_at = min(self._ask_at, now + _ASK_AGAIN_AFTER)
        if self._total is None and not self._has_warned:
            self._has_warned = True
            log.warning("Nothing starts until Kafka says how many partitions share the rate limit: %s", error)
        if not isinstance(error, HeadwayError):
            raise error

    def _count(self) -> int:
        return partitions_of(self._subscriptions, Admin(connection_of(self._config)).topics().seen)


def partitions_of(subscriptions: Sequence[LevelSubscription], partitions: Mapping[str, int]) -> int:
    """Return how many partitions the subscriptions have together, of topics with so many each.

    >>> partitions_of([LevelSubscription(["a-0"], "-0"), LevelSubscription(["^(b.*)-1$"], "-1")], {"a-0": 6, "bc-1": 4})
    10
    """
    return sum(
        count
        for subscription in subscriptions
        for name, count in partitions.items()
        if any(matches(topic, name) for topic in subscription.topics)
    )
