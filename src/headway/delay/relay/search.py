"""Searches the delay topics for a record that was rescheduled to an earlier time and would otherwise be delivered late.

The times of the schedule limit which delay topics its record can be in, and when the record may have been appended to
each of them. So only a small part of the delay topics must be read. The relay continues its work during the search. A
scheduler might have created a delay topic for this record seconds ago, so that the relay does not read this delay topic
yet. So if the record is not in the delay topics that the relay reads, the search requests a list of all delay topics
from the brokers.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from headway.core.delay.delay_topic_window import Fetched
from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.relay_tick import Search
from headway.core.delay.schedule import STORED_WITHIN, Schedule
from headway.delay.records import fetched_from
from headway.delay.topic_names import TopicNames
from headway.errors import HeadwayError
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import Partition
from headway.kafka.reading.group_inspector import GroupInspector
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)


class SearchRange(NamedTuple):
    """The part of a delay topic between two append times, in milliseconds since the epoch."""

    delay_topic: int
    first: int
    last: int


class Searcher:
    """Searches the delay topics for records, in its own thread."""

    def __init__(self, config: Mapping[str, Any], names: TopicNames, wake: Wakeup) -> None:
        self._config = config
        self._names = names
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "headway-search")
        self._running: list[tuple[int, Future[tuple[Search, Fetched | None]]]] = []
        self._admin: Admin | None = None
        self._inspector: GroupInspector | None = None
        self._closing = False

    def search(self, number: int, search: Search, ladder: Ladder, starts: Mapping[int, int], now: int) -> None:
        """Start a search in the partitions with this number.

        The search covers the unhandled part of each delay topic that the relay reads, and then all delay topics that
        the relay does not read yet.
        """
        future = self._thread.submit(self._find, number, search, ladder, dict(starts), now)
        self._running.append((number, future))
        future.add_done_callback(lambda _: self._wake.set())

    def results(self) -> Iterator[tuple[int, Search, Fetched | None]]:
        """Yield the searches that have finished since the last call, each with its partition number and its result."""
        done = [each for each in self._running if each[1].done()]
        self._running = [each for each in self._running if not each[1].done()]
        for number, future in done:
            yield number, *future.result()

    def forget(self) -> None:
        """Discard the results of running searches."""
        self._running.clear()

    def close(self) -> None:
        """End the thread and the search that is running."""
        self._closing = True
        self._thread.shutdown(cancel_futures=True)
        if self._inspector:
            self._inspector.close()

    def _find(
        self, number: int, search: Search, ladder: Ladder, starts: Mapping[int, int], now: int
    ) -> tuple[Search, Fetched | None]:
        """Return the search and the record. If a delay topic could not be read, the search does not count as a try."""
        counted = search
        for part in search_ranges(search, ladder, list(starts), now):
            try:
                if found := self._find_in(number, search, part, starts[part.delay_topic]):
                    return search, found
            except HeadwayError as error:
                log.warning(
                    "The search for the schedule %s in the delay topic %d failed: %s",
                    search.id,
                    part.delay_topic,
                    error,
                )
                counted = search._replace(tries=0)
        try:
            for part in search_ranges(search, ladder, self._delay_topics_beside(starts), now):
                if found := self._find_in(number, search, part, 0):
                    return search, found
        except HeadwayError as error:
            # The next search creates a new admin client, because this one can keep sending requests to a broker that no
            # longer exists.
            self._admin = None
            log.warning("The search for the schedule %s in other delay topics failed: %s", search.id, error)
            counted = search._replace(tries=0)
        return counted, None

    def _delay_topics_beside(self, known: Collection[int]) -> list[int]:
        """Return the existing delay topics that the relay does not read."""
        self._admin = self._admin or Admin(self._config)
        return [
            delay_topic for delay_topic in self._names.delay_topics_of(self._admin.topics()) if delay_topic not in known
        ]

    def _find_in(self, number: int, search: Search, part: SearchRange, start: int) -> Fetched | None:
        self._inspector = self._inspector or GroupInspector(self._config, self._names.name)
        place: Partition = (self._names.delay_topic(part.delay_topic), number)
        end = self._inspector.ends([place]).get(place)
        if end is None:  # the delay topic was deleted
            return None
        start = max(start, self._inspector.offset_at(place, part.first, end))
        for message in self._inspector.read(place, start, end):
            if self._closing or message.timestamp()[1] > part.last:
                return None
            found = fetched_from(message)
            schedule = found.schedule
            if isinstance(schedule, Schedule) and search.is_for(schedule):
                return found
        return None


def search_ranges(search: Search, ladder: Ladder, delay_topics: list[int], now: int) -> Iterator[SearchRange]:
    """Yield the ranges that can contain the record. The first one is where the record should be if it is on time."""
    step = ladder.step_at(search.due - search.at, now - search.at)
    if step is not None and step[1] in delay_topics:
        elapsed, delay_topic = step
        yield SearchRange(delay_topic, max(0, search.at + elapsed - 1000), search.at + elapsed + 10_000)
    for delay_topic in delay_topics:
        last = search.due - delay_topic + STORED_WITHIN
        if delay_topic != MEMORY and search.at <= last:
            yield SearchRange(delay_topic, max(0, search.at - 1000), last)
