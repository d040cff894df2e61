"""Computes a member's share of its group's rate limits.

The share is the member's number of partitions, divided by the number of all partitions of the subscription in Kafka. A
partition never has two owners, so the group stays within its limit when members join or leave, even if the members
cannot reach each other. A member lends the part of its share that it does not need to other members, and borrows from
them; see `core/rate_loans.py`.
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

# Seconds between two counts of the subscription's partitions. If the partitions of this member change, it counts at
# once. So the interval matters only if a topic gets new partitions and all of them are assigned to other members.
_COUNT_EVERY = 60.0
_COUNT_AGAIN_AFTER = 1.0  # seconds until the next count after a failed one

# Seconds between two messages. A loan lasts four times as long, so one late or lost message leaves no gap.
_LEND_EVERY = 0.5
_WEIGHT = 0.5  # the weight of the latest interval in the moving average of the usage
_HEADROOM = 1.1  # the multiple of its usage that a member keeps, because starts are not spread evenly
_GROWTH = 2.0  # the multiple of its usage that a member requests if records wait
_CLOSES_WITHIN = 2.0  # the longest wait for the thread at the end of the run, in seconds


class SharedRate(Protocol):
    """One or more rate limits that the group's members share. This member's share is a number from 0 to 1."""

    @property
    def is_shared(self) -> bool: ...
    def needs(self, ready: int, seconds: float, now: float) -> Mapping[str, tuple[float, float]]: ...
    def share(self, share: float, now: float, others: Mapping[str, float]) -> None: ...


class GroupRate:
    """Keeps one member's shares of rate limits up to date. It does nothing if no limit is shared.

    The shares are 0 until the number of partitions is known and all earlier loans have ended. The control thread calls
    `update`. A separate thread lends and borrows.
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
        self._changed = threading.Event()  # set when this member's share changes, a message arrives, or the run ends
        self._ended = False
        self._loans = Loans(uuid.uuid4().hex)
        self._messages = RateMessages(lambda: connection_of(config), group, self._changed.set)
        self._used: dict[str, float] = {}  # the average usage of each rate, as a fraction of the rate
        # For each rate with waiting records: the fraction that they need, and the time until which it is remembered.
        self._waited: dict[str, tuple[float, float]] = {}
        self._applied: tuple[float, Mapping[str, float]] = 0.0, {}
        for rate in self._rates:
            rate.share(0.0, time.monotonic(), {})

    def subscribe(self, subscriptions: Sequence[LevelSubscription]) -> None:
        """Compute the shares from the number of partitions of these topics."""
        self._subscriptions = subscriptions

    def update(self, now: float) -> None:
        """Adapt the share to the partitions that are assigned to this member now. This never blocks."""
        if not self._rates:
            return
        assigned = sum(len(level.membership.assigned) for level in self._levels)
        if assigned != self._assigned:
            self._assigned = assigned
            self._count_at = now  # the group might have rebalanced because a topic has new partitions
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
                "This member has %d of %s partitions, and so the same fraction of the rate limits.",
                assigned,
                self._total,
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
                except Exception:  # the thread must continue, because without it a borrowed rate would be used forever
                    log.exception("Sharing the rate limits raised an unexpected error. It will be tried again.")
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
            # A member must stop using what it lends before the borrower gets the message.
            self._apply(now)
            if message_to_others is not None:
                self._messages.say(message_to_others)
            until = min(lent_at + _LEND_EVERY, self._loans.next_change(now) or math.inf)
            self._changed.wait(max(0.0, until - time.monotonic()))

    def _needs(self, seconds: float, now: float) -> dict[str, Need]:
        """Return the fraction of each rate that this member needs.

        This is the member's usage with some headroom, or more if records are waiting.
        """
        with self._dispatch.lock:
            ready = sum(self._dispatch.engine.ready)
            found = {name: need for rate in self._rates for name, need in rate.needs(ready, seconds, now).items()}
        needs = {}
        for name in found.keys() | self._used.keys() | self._waited.keys():
            used, waiting = found.get(name, (0.0, 0.0))
            if waiting:
                self._waited[name] = waiting, now + LEASE
            elif name in self._waited:
                # The need of waiting records is remembered for as long as a loan lasts, because more records can arrive
                # after a moment in which none wait.
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
            log.warning(
                "The number of partitions that share the rate limit could not be read from Kafka, so no record starts "
                "yet. It will be tried again: %s",
                error,
            )
        if not isinstance(error, HeadwayError):
            raise error

    def _count(self) -> int:
        return partitions_of(self._subscriptions, Admin(connection_of(self._config)).topics().seen)


def partitions_of(subscriptions: Sequence[LevelSubscription], partitions: Mapping[str, int]) -> int:
    """Count the partitions of all subscribed topics. `partitions` has the number of partitions of each topic in Kafka.

    >>> partitions_of([LevelSubscription(["a-0"], "-0"), LevelSubscription(["^(b.*)-1$"], "-1")], {"a-0": 6, "bc-1": 4})
    10
    """
    return sum(
        count
        for subscription in subscriptions
        for name, count in partitions.items()
        if any(matches(topic, name) for topic in subscription.topics)
    )
