"""Computes one member's share of the rate limits of its group.

A member's share is the number of its partitions divided by the number of all partitions of the subscribed topics. No
partition ever has two owners, so the group stays within its limit when members join or leave, even if the members
cannot exchange messages. A member lends whatever it does not need of its share to other members, and can borrow from
them (see `core/rate_loans.py`).
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

# How often a member counts the partitions of the subscribed topics, in seconds. If the partitions of this member
# change, it counts at once. So the interval matters only if a topic gets new partitions and all of them are assigned to
# other members.
_COUNT_EVERY = 60.0
_COUNT_AGAIN_AFTER = 1.0  # how long after a failed count the partitions are counted again, in seconds

# The time between two messages, in seconds. A loan lasts four times as long, so it does not end if one message is late
# or lost.
_LEND_EVERY = 0.5
_WEIGHT = 0.5  # the weight of the latest interval in the moving average of a member's usage
_HEADROOM = 1.1  # a member keeps this many times its usage, because starts are not spread evenly
_GROWTH = 2.0  # if records are waiting, a member requests this many times its usage
_CLOSES_WITHIN = 2.0  # how long the end of the run waits for the thread, in seconds


class SharedRate(Protocol):
    """One or more rate limits that the members of the group share. A member's share is a number from 0 to 1."""

    @property
    def is_shared(self) -> bool: ...
    def needs(self, ready: int, seconds: float, now: float) -> Mapping[str, tuple[float, float]]: ...
    def share(self, share: float, now: float, others: Mapping[str, float]) -> None: ...


class GroupRate:
    """Keeps one member's shares of the rate limits up to date. If no limit is shared, this object does nothing.

    The shares are 0 until the number of partitions is known and all earlier loans have ended. The control thread calls
    `update`. A separate thread lends and borrows parts of the shares.
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
        # For each rate with waiting records: which fraction of the rate they need, and how long this need is
        # remembered.
        self._waited: dict[str, tuple[float, float]] = {}
        self._applied: tuple[float, Mapping[str, float]] = 0.0, {}
        for rate in self._rates:
            rate.share(0.0, time.monotonic(), {})

    def subscribe(self, subscriptions: Sequence[LevelSubscription]) -> None:
        """Set the topics from whose number of partitions the shares are computed."""
        self._subscriptions = subscriptions

    def add(self, rate: SharedRate) -> None:
        """Share a rate that was added during the run. Adding the same rate twice has no effect."""
        with self._dispatch.lock:
            if rate not in self._rates:
                base, others = self._applied
                rate.share(base, time.monotonic(), others)
                self._rates = [*self._rates, rate]  # a new list, because other threads may be reading the old one

    def update(self, now: float) -> None:
        """Adapt the share to the partitions that are currently assigned to this member. Never blocks."""
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
                "This member has %d of %s partitions, and gets the same fraction of the rate limits.",
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
                except Exception:  # if the thread ended, this member would use a borrowed rate forever
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
            # A member must stop using a lent fraction before the borrower gets the message.
            self._apply(now)
            if message_to_others is not None:
                self._messages.say(message_to_others)
            until = min(lent_at + _LEND_EVERY, self._loans.next_change(now) or math.inf)
            self._changed.wait(max(0.0, until - time.monotonic()))

    def _needs(self, seconds: float, now: float) -> dict[str, Need]:
        """Return the fraction of each rate that this member needs.

        The need is the member's usage plus some headroom, and more if records are waiting.
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
                # If no record is waiting at the moment, the need of earlier waiting records is remembered for as long
                # as a loan lasts, because more records can arrive soon.
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
                "yet. The read will be tried again: %s",
                error,
            )
        if not isinstance(error, HeadwayError):
            raise error

    def _count(self) -> int:
        return partitions_of(self._subscriptions, Admin(connection_of(self._config)).topics().seen)


def partitions_of(subscriptions: Sequence[LevelSubscription], partitions: Mapping[str, int]) -> int:
    """Count the partitions of all subscribed topics. `partitions` maps each topic in Kafka to its number of partitions.

    >>> partitions_of([LevelSubscription(["a-0"], "-0"), LevelSubscription(["^(b.*)-1$"], "-1")], {"a-0": 6, "bc-1": 4})
    10
    """
    return sum(
        count
        for subscription in subscriptions
        for name, count in partitions.items()
        if any(matches(topic, name) for topic in subscription.topics)
    )
