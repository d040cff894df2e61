"""A member's share of its group's rate limits: by the partitions that it has, less what it lends, plus what it borrows.

All members divide by the same number, the partitions of the subscription in Kafka. No partition has two members, so the
group stays within the limit whoever joins or leaves, even if no message gets from one member to another. A member lends
what it does not need to members that ask for more; see `core/rate_loans.py`.
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

# A topic that gets more partitions makes its group rebalance, and members ask then; this is for one that keeps its own.
_ASK_EVERY = 60.0  # seconds
_ASK_AGAIN_AFTER = 1.0

_TURN_EVERY = 0.5  # seconds: a quarter of a loan, so that one late or lost message leaves no gap
_WEIGHT = 0.5  # of the last turn in the average that a member uses
_HEADROOM = 1.1  # a member keeps this much of what it uses, because starts are not spread evenly
_GROWTH = 2.0  # if records wait, a member asks for this much of what it uses
_CLOSES_WITHIN = 2.0  # seconds


class SharedRate(Protocol):
    """Rates that this member has a share of, from 0 to 1."""

    @property
    def is_shared(self) -> bool: ...
    def needs(self, ready: int, seconds: float, now: float) -> Mapping[str, tuple[float, float]]: ...
    def share(self, share: float, now: float, others: Mapping[str, float]) -> None: ...


class GroupRate:
    """Keeps one member's shares of rates. It does nothing without a rate to share.

    The shares are 0 until the number of partitions is known and the time of a loan is over. The control thread counts
    the partitions that the member has; everything else runs in a thread of its own.
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
        self._asked: Future[int] | None = None
        self._ask_at = math.inf
        self._has_warned = False
        self._share = 0.0
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()  # the member's own share has, or the run ends
        self._ended = False
        self._loans = Loans(uuid.uuid4().hex)
        self._messages = RateMessages(lambda: connection_of(config), group, self._changed.set)
        self._used: dict[str, float] = {}  # of each rate, as fractions
        self._waited: dict[str, tuple[float, float]] = {}  # by rate: how much, and until when it counts
        self._applied: tuple[float, Mapping[str, float]] = 0.0, {}
        for rate in self._rates:
            rate.share(0.0, time.monotonic(), {})

    def subscribe(self, subscriptions: Sequence[LevelSubscription]) -> None:
        """Note the topics that the members share."""
        self._subscriptions = subscriptions

    def turn(self, now: float) -> None:
        """Follow the partitions that this member has. Never waits."""
        if not self._rates:
            return
        assigned = sum(len(level.membership.assigned) for level in self._levels)
        if assigned != self._assigned:
            self._assigned = assigned
            self._ask_at = now  # topics that have more partitions than before make a group share them again
        if self._asked is not None and self._asked.done():
            self._note(self._asked, now)
        if self._asked is None and assigned and now >= self._ask_at:
            self._asked = in_background(self._count)
            self._asked.add_done_callback(lambda _: self._wake.set())
            self._ask_at = now + _ASK_EVERY
        share = min(1.0, assigned / self._total) if self._total else 0.0
        if share != self._share:
            self._share = share
            self._changed.set()
            log.info("This member has %d of %s partitions, and that part of the rates to share.", assigned, self._total)
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
        base, turned_at = 0.0, time.monotonic()
        try:
            while not self._ended:
                self._changed.clear()
                now = time.monotonic()
                if self._share != base:
                    base = self._share
                    self._loans.rebase(base, now)
                if 0 < base < 1:
                    self._messages.open()
                for message in self._messages.take():
                    self._loans.hear(message, now)
                said = None
                if now >= turned_at + _TURN_EVERY:
                    said = self._loans.turn(self._needs(now - turned_at, now), now)
                    turned_at = now
                self._apply(now)
                if said is not None:
                    self._messages.say(said)
                until = min(turned_at + _TURN_EVERY, self._loans.next_change(now) or math.inf)
                self._changed.wait(max(0.0, until - time.monotonic()))
        finally:
            self._messages.close()

    def _needs(self, seconds: float, now: float) -> dict[str, Need]:
        """Return how much of each rate this member needs: what it uses, and more if records wait."""
        with self._dispatch.lock:
            ready = sum(self._dispatch.engine.ready)
            found = {name: need for rate in self._rates for name, need in rate.needs(ready, seconds, now).items()}
        needs = {}
        for name in found.keys() | self._used.keys() | self._waited.keys():
            used, waiting = found.get(name, (0.0, 0.0))
            if waiting:
                self._waited[name] = waiting, now + LEASE
            elif name in self._waited:
                # One moment without waiting records does not justify lending for seconds what they would miss.
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

    def _note(self, asked: "Future[int]", now: float) -> None:
        self._asked = None
        error = asked.exception()
        if error is None:
            self._total = asked.result()
            return
        self._ask_at = min(self._ask_at, now + _ASK_AGAIN_AFTER)
        if self._total is None and not self._has_warned:
            self._has_warned = True
            log.warning("No record starts until Kafka reports how many partitions share the rate limit: %s", error)
        if not isinstance(error, HeadwayError):
            raise error

    def _count(self) -> int:
        return partitions_of(self._subscriptions, Admin(connection_of(self._config)).topics().seen)


def partitions_of(subscriptions: Sequence[LevelSubscription], partitions: Mapping[str, int]) -> int:
    """Count the partitions of all topics that are subscribed to, given the partitions of each topic in Kafka.

    >>> partitions_of([LevelSubscription(["a-0"], "-0"), LevelSubscription(["^(b.*)-1$"], "-1")], {"a-0": 6, "bc-1": 4})
    10
    """
    return sum(
        count
        for subscription in subscriptions
        for name, count in partitions.items()
        if any(matches(topic, name) for topic in subscription.topics)
    )
