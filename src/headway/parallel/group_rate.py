"""A member's share of its group's rate limits: in proportion to its partitions, less loans, plus borrowings.

Each member divides its number of partitions by that of the whole subscription in Kafka. A partition never has two
members, so the group stays within the limit when members join or leave, and even if no message gets from one member to
another. A member lends the part of its share that it does not need; see `core/rate_loans.py`.
"""

import logging
import math
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from headway.core.levels.naming import LevelSubscription, matches
from headway.core.rate_loans import LEASE, Loans, Need
from headway.errors import HeadwayError
from headway.execution.dispatch import Dispatch
from headway.kafka.admin import Admin
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.kafka.reading.rate_messages import RateMessages
from headway.runtime.background import in_background
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config
from headway.settings.connection_settings import connection_of

log = logging.getLogger(__name__)

# Seconds between two counts of the subscription's partitions. A member whose own partitions change counts at once, so
# this matters only when other members alone got the new partitions of a topic.
_COUNT_EVERY = 60.0
_COUNT_AGAIN_AFTER = 1.0  # seconds after a failure

_LEND_EVERY = 0.5  # seconds; a quarter of a loan, so that one late or lost message leaves no gap
_WEIGHT = 0.5  # of the latest interval in the moving average of the usage
_HEADROOM = 1.1  # a member keeps this multiple of its usage, because starts are not spread evenly
_GROWTH = 2.0  # if records wait, a member asks for this multiple of its usage
_CLOSES_WITHIN = 2.0  # seconds


class SharedRate(Protocol):
    """A rate limit, or several, of which this member has a share from 0 to 1."""

    @property
    def is_shared(self) -> bool: ...
    def needs(self, ready: int, seconds: float, now: float) -> Mapping[str, tuple[float, float]]: ...
    def share(self, share: float, now: float, others: Mapping[str, float]) -> None: ...


class GroupRate:
    """Keeps one member's shares of rate limits up to date. It does nothing if no limit is shared.

    The shares are 0 until the number of partitions is known and earlier loans are over. The control thread calls
    `update`; lending and borrowing have a thread of their own.
    """

    def __init__(
        self,
        config: Config,
        group: str,
        levels: LevelConsumers,
        rates: Sequence[SharedRate],
        dispatch: Dispatch,
        wake: Wakeup,
    ) -> None:
        self._config = config
        self._levels = levels
        self._rates = [rate for rate in rates if rate.is_shared]
        self._dispatch = dispatch
        self._wake = wake
        self._subscriptions: Sequence[LevelSubscription] = ()
        self._assigned = 0
        self._total: int | None = None
        self._counting: Future[int] | None = None
        self._count_at = math.inf
        self._has_warned = False
        self._share = 0.0
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()  # set when the own share changes, a message arrives, or the run ends
        self._ended = False
        self._loans = Loans(uuid.uuid4().hex)
        self._messages = RateMessages(lambda: connection_of(config), group, self._changed.set)
        self._used: dict[str, float] = {}  # the average usage of each rate, as a fraction
        self._waited: dict[str, tuple[float, float]] = {}  # by rate: the demand of waiting records, and its last time
        self._applied: tuple[float, Mapping[str, float]] = 0.0, {}
        for rate in self._rates:
            rate.share(0.0, time.monotonic(), {})

    def subscribe(self, subscriptions: Sequence[LevelSubscription]) -> None:
        """Share the rates in proportion to the partitions of these topics."""
        self._subscriptions = subscriptions

    def update(self, now: float) -> None:
        """Adapt the share to the partitions that this member has now. Never blocks."""
        if not self._rates:
            return
        assigned = sum(len(level.membership.assigned) for level in self._levels)
        if assigned != self._assigned:
            self._assigned = assigned
            self._count_at = now  # perhaps a topic has more partitions than before, and the group has rebalanced
        if self._counting is not None and self._counting.done():
            self._note(self._counting, now)
        if self._counting is None and assigned and now >= self._count_at:
            self._counting = in_background(self._count)
            self._counting.add_done_callback(lambda _: self._wake.set())
            self._count_at = now + _COUNT_EVERY
        share = min(1.0, assigned / self._total) if self._total else 0.0
        if share != self._share:
            self._share = share
            self._changed.set()
            log.info(
                "This member has %d of %s partitions, and that fraction of the rate limits.", assigned, self._total
            )
            if self._thread is None:
                self._thread = threading.Thread(target=self._lend, name="headway-group-rate", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread, if there is one."""
        self._ended = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join(_CLOSES_WITHIN)

    def _lend(self) -> None:
        try:
            while not self._ended:
                try:
                    self._lend_until_ended()
                except Exception:  # without this thread, a borrowed rate would be used forever
                    log.exception("Sharing the rate limits raised an unexpected error. The member's thread goes on.")
                    time.sleep(_LEND_EVERY)
        finally:
            self._messages.close()

    def _lend_until_ended(self) -> None:
        base, lent_at = 0.0, time.monotonic()
        while not self._ended:
            self._changed.clear()
            now = time.monotonic()
            if self._share != base:
                base = self._share
                self._loans.rebase(base, now)
            if 0 < base < 1:
                self._messages.open()
            for message in self._messages.take():
                self._loans.receive(message, now)
            message_to_others = None
            if now >= lent_at + _LEND_EVERY:
                message_to_others = self._loans.next_message(self._needs(now - lent_at, now), now)
                lent_at = now
            # Before others hear of a loan, this member must have stopped using what it lends.
            self._apply(now)
            if message_to_others is not None:
                self._messages.say(message_to_others)
            until = min(lent_at + _LEND_EVERY, self._loans.next_change(now) or math.inf)
            self._changed.wait(max(0.0, until - time.monotonic()))

    def _needs(self, seconds: float, now: float) -> dict[str, Need]:
        """Return how much of each rate this member needs: its usage with some headroom, or more if records wait."""
        with self._dispatch.lock:
            ready = sum(self._dispatch.engine.ready)
            found = {name: need for rate in self._rates for name, need in rate.needs(ready, seconds, now).items()}
        needs = {}
        for name in found.keys() | self._used.keys() | self._waited.keys():
            used, waiting = found.get(name, (0.0, 0.0))
            if waiting:
                self._waited[name] = waiting, now + LEASE
            elif name in self._waited:
                # A loan lasts for seconds. One moment without waiting records does not mean that none will come.
                waiting, until = self._waited[name]
                if now >= until:
                    del self._waited[name]
                    waiting = 0.0
            used = self._used.get(name, 0.0) * (1 - _WEIGHT) + used * _WEIGHT
            if used < 1e-3 and not waiting:
                self._used.pop(name, None)
                continue
            self._used[name] = used
            wanted = max(used * _GROWTH, used + waiting) if waiting else used * _HEADROOM
            needs[name] = Need(used, min(1.0, wanted))
        return needs

    def _apply(self, now: float) -> None:
        shares = self._loans.base(now), {name: self._loans.share(name, now) for name in self._loans.names(now)}
        if shares == self._applied:
            return
        self._applied = shares
        with self._dispatch.lock:
            for rate in self._rates:
                rate.share(shares[0], now, shares[1])
        self._wake.set()

    def _note(self, counted: "Future[int]", now: float) -> None:
        self._counting = None
        error = counted.exception()
        if error is None:
            self._total = counted.result()
            return
        self._count_at = min(self._count_at, now + _COUNT_AGAIN_AFTER)
        if self._total is None and not self._has_warned:
            self._has_warned = True
            log.warning("No record starts until Kafka reports how many partitions share the rate limit: %s", error)
        if not isinstance(error, HeadwayError):
            raise error

    def _count(self) -> int:
        return partitions_of(self._subscriptions, Admin(connection_of(self._config)).topics().seen)


def partitions_of(subscriptions: Sequence[LevelSubscription], partitions: Mapping[str, int]) -> int:
    """Return the number of partitions of all subscribed topics, given the number of each topic in Kafka.

    >>> partitions_of([LevelSubscription(["a-0"], "-0"), LevelSubscription(["^(b.*)-1$"], "-1")], {"a-0": 6, "bc-1": 4})
    10
    """
    return sum(
        count
        for subscription in subscriptions
        for name, count in partitions.items()
        if any(matches(topic, name) for topic in subscription.topics)
    )
