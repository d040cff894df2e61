"""Counts the delays of incoming records and, from time to time, fits the delay topics to them."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Literal

from headway.core.delay.delay_topic_window import Fetched
from headway.core.delay.ladder import MOST_DELAYS as MOST_OF_A_LADDER
from headway.core.delay.ladder import Ladder
from headway.core.delay.recent_delays import RecentDelays, delays_of, is_like
from headway.core.untrusted import LATEST
from headway.declarations import check_above_zero, check_whole
from headway.delay.fit_records import delays_key
from headway.delay.relay.delay_topic_examiner import DelayTopicExaminer
from headway.delay.topic_names import TopicNames
from headway.errors import AuthorizationError, ConfigError, HeadwayError
from headway.runtime.background import in_background

log = logging.getLogger(__name__)

FitMode = Literal["off", "report", "auto"]

MOST_DELAY_TOPICS = 16
RETIRE_AFTER = 6 * 3600.0

LOOK_EVERY = 5.0
"""The time between two examinations of the delay topics while records arrive, in seconds."""

LOOK_AT_REST_EVERY = 60.0
"""The time between two examinations of the delay topics while no records arrive, in seconds."""

_STORE_EVERY = 600.0
_WARN_EVERY = 60.0
_CLOSE_WITHIN = 5.0
_SAME = 0.1  # Delays are stored again only if they change the cost by at least this many writes per record.


class DelayTopicFitter:
    """Counts the delays of incoming records.

    In the relay that has partition 0, a thread also fits the delay topics to these delays.

    Each relay stores the delays of the records in its own partitions. The relay with partition 0 adds up the stored
    delays of all partitions, and decides which delay topics to use.

    Args:
        config: librdkafka's settings.
        names: The names of the scheduler's topics.
        mode: With "report", the fitter logs which delay topics would be better. With "auto", it puts these delay topics
            in use.
        most: The maximum number of delay topics that can exist.
        retire_after: A delay topic can be retired if no record has been written to it for this many seconds.
    """

    def __init__(
        self, config: Mapping[str, Any], names: TopicNames, mode: FitMode, most: int, retire_after: float
    ) -> None:
        if mode not in ("off", "report", "auto"):
            raise ConfigError(f"fit is {mode!r}; it must be 'off', 'report' or 'auto'.")
        check_whole("max_delay_topics", most, 2)
        if most > MOST_OF_A_LADDER:
            raise ConfigError(f"max_delay_topics is {most}; it must be at most {MOST_OF_A_LADDER}.")
        check_above_zero("retire_after", retire_after)
        if retire_after > LATEST // 1000:
            raise ConfigError(f"retire_after is {retire_after}; it must be a number of seconds up to {LATEST // 1000}.")
        self._is_on = mode != "off"
        self._examiner = DelayTopicExaminer(config, names, most, retire_after, applies=mode == "auto")
        self._recent: dict[int, RecentDelays] = {}
        self._restored: set[int] = set()  # the partition numbers whose stored delays have been added to the counts
        self._stored: dict[int, dict[int, float]] = {}
        self._stored_at: dict[int, float] = {}
        self._something_came = False
        self._examining: Future[Mapping[int, RecentDelays]] | None = None
        self._examine_at = self._warn_at = 0.0

    def count(self, number: int, delay_topic: int, records: Sequence[Fetched], ladder: Ladder, now: int) -> None:
        """Count the delays of the newly scheduled records among these fetched records."""
        if self._is_on:
            self.add(number, delays_of(delay_topic, records, ladder), now)

    def add(self, number: int, delays: Iterable[int], now: int) -> None:
        """Add to a partition's counts the delays of its schedules that were rescheduled or that recur."""
        if self._is_on and (delays := list(delays)):
            self._something_came = True
            self._recent.setdefault(number, RecentDelays(now)).add(delays, now)

    def examine_if_due(self, numbers: Collection[int], ladder: Ladder, now: int) -> None:
        """If an examination is due, start it in the background. If an examination has ended, take its result.

        Never waits.
        """
        if not self._is_on:
            return
        if self._examining is not None:
            if self._examining.done():
                self._take(self._examining, now)
                self._examining = None
            return
        at = time.monotonic()
        if at < self._examine_at or (not self._something_came and at < self._examine_at + LOOK_AT_REST_EVERY):
            return
        self._examine_at = at + LOOK_EVERY
        self._something_came = False
        for number in [each for each in self._recent if each not in numbers]:
            del self._recent[number]
            self._stored.pop(number, None)
        self._restored.intersection_update(numbers)
        own = {number: each.weights(now) for number, each in self._recent.items() if number in self._restored}
        values = {delays_key(number): self._value(number, now) for number in own if self._differs(number, own, ladder)}
        wanted = set(numbers).difference(self._restored)
        self._examining = in_background(partial(self._examiner.examine, now, values, own, wanted, leads=0 in numbers))

    def _value(self, number: int, now: int) -> bytes:
        return self._recent[number].encode(now)

    def _differs(self, number: int, own: Mapping[int, dict[int, float]], ladder: Ladder) -> bool:
        """Return whether the delays of a partition must be stored: if they have changed, or from time to time."""
        at = time.monotonic()
        before = self._stored.get(number)
        if before and at < self._stored_at[number] + _STORE_EVERY and is_like(own[number], before, ladder, _SAME):
            return False
        self._stored[number], self._stored_at[number] = own[number], at
        return True

    def _take(self, examining: "Future[Mapping[int, RecentDelays]]", now: int) -> None:
        try:
            stored_delays = examining.result()
        except AuthorizationError as error:
            if time.monotonic() >= self._warn_at:
                self._warn_at = time.monotonic() + _WARN_EVERY
                log.warning("The delay topics cannot be adapted to the delays of the records. %s", error)
        except HeadwayError as error:
            log.debug("The delay topics cannot be adapted to the delays of the records now: %s", error)
        except Exception:  # deliveries must continue with the current delay topics
            log.exception("The delay topics cannot be adapted to the delays of the records now.")
        else:
            for number, stored in stored_delays.items():
                recent = self._recent.setdefault(number, RecentDelays(now))
                recent.merge(stored, now)
            self._restored |= stored_delays.keys()

    def close(self) -> None:
        """Wait for a running examination, but only a few seconds, because the brokers might not answer."""
        if self._examining is None:
            self._examiner.close()
            return
        wait([self._examining], _CLOSE_WITHIN)
        self._examining.add_done_callback(lambda _: self._examiner.close())
