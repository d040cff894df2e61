"""Examines the delay topics in Kafka: adds delay topics, takes others out of use, and deletes unused delay topics.

Everything that the next examination needs is stored in the ladder's topic. So when a relay ends, another relay can
continue its work, and two relays that examine the delay topics at the same time reach the same result.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from headway.core.delay.delay_topic_fitting import DelayTopicsNow, fitted
from headway.core.delay.delay_topic_retirement import FitState, Seen, Waits, advanced, idle
from headway.core.delay.ladder import MEMORY, Ladder, writes_per_record
from headway.core.delay.recent_delays import RecentDelays, is_like, sum_of
from headway.delay.fit_records import FIT_KEY, delays_from, fit_state_from
from headway.delay.topic_names import TopicNames
from headway.delay.topics import LADDER_KEY, Layout, create_delay_topics, encode_ladder, layout_seen_by, store_in_ladder
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.time_limits import LOG_BOUNDS_TOLD_WITHIN
from headway.kafka.reading.compacted import TopicReader
from headway.kafka.reading.group_inspector import GroupInspector

log = logging.getLogger(__name__)

SETTLES_IN = 900_000
"""How long after a change of the delay topics a further change needs a large gain, in milliseconds."""

KNOWN_IN = 900_000
"""How long it takes until every scheduler has stopped using a delay topic that is out of use, in milliseconds."""

UNREAD_FOR = 120_000
"""How long a delay topic must not have been read by any relay before it is deleted, in milliseconds."""

_SAME = 0.05  # Delays count as unchanged if they change the cost by less than this many writes per record.
_FEW = 1000  # if a delay topic has at most this many offsets, it is read, because they might all be transaction markers


class _Fitted(NamedTuple):
    """The result and the inputs of the latest search for better delay topics.

    It is not repeated for the same inputs.
    """

    delay_topics: DelayTopicsNow
    delays: Mapping[int, float]
    ladder: Ladder
    settled: bool
    chosen: tuple[int, ...]


class DelayTopicExaminer:
    """Examines the delay topics of a scheduler. Not thread-safe.

    Args:
        config: librdkafka's settings.
        names: The names of the scheduler's topics.
        most: The maximum number of delay topics that can exist.
        retire_after: A delay topic can be retired if no record has been written to it for this many seconds.
        applies: True to change the delay topics, or False to only log which delay topics would be better.
    """

    def __init__(
        self, config: Mapping[str, Any], names: TopicNames, most: int, retire_after: float, *, applies: bool
    ) -> None:
        self._config = config
        self._names = names
        self._most = most
        self._applies = applies
        self._waits = Waits(round(retire_after * 1000), KNOWN_IN, UNREAD_FOR)
        self._reader: TopicReader | None = None
        self._inspector: GroupInspector | None = None
        self._stored_at = -1.0
        self._proposed: tuple[int, ...] = ()
        self._last: _Fitted | None = None

    def examine(
        self,
        now: int,
        values: Mapping[str, bytes],
        own: Mapping[int, Mapping[int, float]],
        wanted: Collection[int],
        *,
        leads: bool,
    ) -> Mapping[int, RecentDelays]:
        """Store these values in the ladder's topic. If `leads` is true, also examine and change the delay topics.

        Returns the stored delays of the `wanted` partitions.

        Args:
            now: The brokers' time in milliseconds.
            values: The delays to store, by key.
            own: The recent delays of this relay's own partitions, which can be newer than the stored delays.
            wanted: The partitions whose stored delays are needed.
            leads: True if this relay decides which delay topics are in use.

        Raises `HeadwayError`. The next call then starts with new clients.
        """
        if not (values or wanted or leads):
            return {}
        try:
            if values:
                store_in_ladder(self._config, self._names, values)
            reader = self._reader = self._reader or TopicReader(self._config)
            layout = layout_seen_by(reader, self._names.name, "Write")
            if layout is None:
                return {}
            stored = self._stored(reader)
            delays = delays_from(self._names.ladder, stored, layout.partitions)
            if leads:
                weights = {number: each.weights(now) for number, each in delays.items()}
                self._decide(reader, layout, self._state(stored), sum_of([*{**weights, **own}.values()]), now)
            return {number: delays.get(number, RecentDelays(now)) for number in wanted}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the clients. The next examination creates new clients."""
        reader, inspector, self._reader, self._inspector = self._reader, self._inspector, None, None
        for client in (reader, inspector):
            if client:
                client.close()

    def _stored(self, reader: TopicReader) -> dict[str, bytes]:
        return reader.compacted(self._names.ladder, [0], LOG_BOUNDS_TOLD_WITHIN)[0]

    def _state(self, stored: Mapping[str, bytes]) -> FitState:
        return fit_state_from(self._names.ladder, stored.get(FIT_KEY))

    # Making decisions and carrying them out

    def _decide(
        self, reader: TopicReader, layout: Layout, before: FitState, delays: Mapping[int, float], now: int
    ) -> None:
        delay_topics = sorted({*layout.delay_topics, *layout.unread} - {MEMORY})
        ends = self._ends(reader, delay_topics, layout.partitions)
        in_use = layout.usable.delays
        seen = Seen(in_use, ends, self._empty(reader, set(ends).difference(in_use), layout.partitions))
        state, to_delete = advanced(before, seen, self._waits, now)
        delay_topics_now = DelayTopicsNow(
            in_use, frozenset(delay_topics), state.retiring, idle(state, self._waits, now)
        )
        chosen = self._fitted(delay_topics_now, delays, settled=now - before.changed >= SETTLES_IN)
        if not self._applies:
            self._report(in_use, chosen, delays)
            return
        if chosen != layout.ladder.delays:
            create_delay_topics(
                reader.admin,
                self._names,
                [delay_topic for delay_topic in chosen if delay_topic not in ends],
                layout.partitions,
            )
            changed = FitState(now if chosen != in_use else before.changed, state.delay_topics)
            self._store(changed, Ladder(chosen))
            if chosen != in_use:
                log.info("%s", self._change("are fitted", in_use, chosen, delays))
        elif self._is_news(before, state):
            self._store(state)
        for delay_topic in to_delete:
            self._delete(delay_topic, state.delay_topics[delay_topic].retires, now)

    def _fitted(self, delay_topics: DelayTopicsNow, delays: Mapping[int, float], *, settled: bool) -> tuple[int, ...]:
        """Return the delay topics to use.

        If the inputs are the same as in the last search, the last result is returned, because a search takes time.
        """
        last = self._last
        if (
            last
            and last.delay_topics == delay_topics
            and last.settled == settled
            and is_like(delays, last.delays, last.ladder, _SAME)
        ):
            return last.chosen
        chosen = fitted(delay_topics, delays, self._most, settled=settled)
        self._last = _Fitted(delay_topics, delays, Ladder(delay_topics.ladder), settled, chosen)
        return chosen

    def _report(self, in_use: tuple[int, ...], chosen: tuple[int, ...], delays: Mapping[int, float]) -> None:
        if chosen not in (in_use, self._proposed):
            log.info("%s `--fit auto` would use these.", self._change("would fit better", in_use, chosen, delays))
        self._proposed = chosen

    def _change(self, verb: str, in_use: tuple[int, ...], chosen: tuple[int, ...], delays: Mapping[int, float]) -> str:
        before, after = Ladder(in_use), Ladder(chosen)
        writes = (
            f" Records are then written {writes_per_record(after, delays):.1f} times each, instead of "
            f"{writes_per_record(before, delays):.1f} times."
            if delays
            else ""
        )
        return f"The delay topics of {self._names.name} {verb}: {after}, instead of {before}.{writes}"

    def _store(self, state: FitState, ladder: Ladder | None = None) -> None:
        values = {} if ladder is None else {LADDER_KEY: encode_ladder(ladder)}
        store_in_ladder(self._config, self._names, {**values, FIT_KEY: state.encode()})
        self._stored_at = time.monotonic()

    def _is_news(self, before: FitState, state: FitState) -> bool:
        """Return whether the state must be stored: if a delay topic has entered another step, or from time to time."""
        if _steps(before) != _steps(state):
            return True
        is_long_ago = time.monotonic() - self._stored_at >= min(600.0, self._waits.unused / 12_000)
        return is_long_ago and before != state

    def _delete(self, delay_topic: int, retires: int, now: int) -> None:
        """Delete a delay topic, unless something has changed since the topic was examined."""
        began = time.monotonic()
        reader = self._reader or TopicReader(self._config)
        layout, stored = layout_seen_by(reader, self._names.name, "Delete"), self._stored(reader)
        use = self._state(stored).delay_topics.get(delay_topic)
        if layout is None or delay_topic in layout.ladder.delays or use is None or use.retires != retires:
            return
        ends = self._ends(reader, [delay_topic], layout.partitions)
        if ends.get(delay_topic) != use.written or delay_topic not in self._empty(
            reader, [delay_topic], layout.partitions
        ):
            return
        if now - retires + (time.monotonic() - began) * 1000 < self._waits.barred / 2:
            reader.admin.delete([self._names.delay_topic(delay_topic)])
            log.info(
                "Deleted the %g s delay topic of %s, which had been empty for a long time.",
                delay_topic / 1000,
                self._names.name,
            )

    # The start and end offsets of the delay topics

    def _ends(self, reader: TopicReader, delay_topics: Iterable[int], partitions: int) -> dict[int, int]:
        """Return the sum of the end offsets of each delay topic. A delay topic with a missing partition is left out."""
        places = {delay_topic: self._places(delay_topic, partitions) for delay_topic in delay_topics}
        found = reader.bounds().ends([place for each in places.values() for place in each])
        return {
            delay_topic: sum(found[place] for place in each)
            for delay_topic, each in places.items()
            if all(place in found for place in each)
        }

    def _places(self, delay_topic: int, partitions: int) -> list[Partition]:
        return [(self._names.delay_topic(delay_topic), number) for number in range(partitions)]

    def _empty(self, reader: TopicReader, delay_topics: Iterable[int], partitions: int) -> set[int]:
        """Return the delay topics that have neither records nor open transactions."""
        places = {place: delay_topic for delay_topic in delay_topics for place in self._places(delay_topic, partitions)}
        starts, ends = reader.bounds().starts(places), reader.bounds().ends(places)
        decided = reader.bounds(isolation="read_committed").ends(places)
        return set(places.values()) - {
            delay_topic
            for place, delay_topic in places.items()
            if not {place} <= starts.keys() & ends.keys()
            or decided.get(place) != ends[place]
            or self._has_records(place, starts[place], ends[place])
        }

    def _has_records(self, place: Partition, start: int, end: int) -> bool:
        if start == end:
            return False
        if end - start > _FEW:
            return True
        inspector = self._inspector = self._inspector or GroupInspector(self._config, self._names.name)
        return any(True for _ in inspector.read(place, start, end))


def _steps(state: FitState) -> dict[int, tuple[int, int]]:
    return {delay_topic: (use.out_of_use, use.retires) for delay_topic, use in state.delay_topics.items()}
