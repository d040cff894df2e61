"""Makes the samples of a relay, on the thread of its rounds, because only that thread may read its records."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping

from headway.delay.relay.output import Ticks
from headway.delay.relay.partition_relays import PartitionRelays
from headway.delay.topic_names import TopicNames
from headway.kafka.binding.capi import Partition
from headway.metrics import table
from headway.metrics.histogram import Histogram
from headway.metrics.samples import Sample

_LOOK_EVERY = 0.5  # the time between two looks, in seconds
_MILLISECONDS = 1e3

_COUNTERS = {
    "delivered": table.RELAY_DELIVERED,
    "cancelled": table.RELAY_CANCELLED,
    "dead letters": table.RELAY_FAILED,
    "transactions": table.RELAY_TRANSACTIONS,
    "aborts": table.RELAY_ABORTS,
    "takeovers": table.RELAY_TAKEOVERS,
}


class RelaySamples:
    """Keeps the samples as of the last round, so that other threads can read them.

    Args:
        group: The relay's consumer group.
        names: The names of the scheduler's topics.
        counts: What the relay has done since its start.
        relays: The state machines of the relay's partition numbers.
        known_end: A function that returns the end of a partition's log, if it is known.
        is_refused: A function that returns whether a permission is missing.
        of_librdkafka: A function that returns the samples of librdkafka's statistics.
    """

    def __init__(
        self,
        group: str,
        names: TopicNames,
        counts: Mapping[str, int],
        relays: PartitionRelays,
        known_end: Callable[[Partition], int | None],
        is_refused: Callable[[], bool],
        of_librdkafka: Callable[[], Collection[Sample]],
    ) -> None:
        self._group = group
        self._names = names
        self._counts = counts
        self._relays = relays
        self._known_end = known_end
        self._is_refused = is_refused
        self._of_librdkafka = of_librdkafka
        self._lateness = Histogram(table.RELAY_LATENESS.bounds)
        self._moved: Counter[str] = Counter()
        self._look_at = 0.0
        self._last: list[Sample] = []

    def samples(self) -> list[Sample]:
        """Return the counters, and all other samples as of the last look. Any thread can call this."""
        counters = [Sample.of(metric, self._counts.get(name, 0), self._group) for name, metric in _COUNTERS.items()]
        return [
            *counters,
            Sample.of(table.RELAY_LATENESS, self._lateness.value(), self._group),
            Sample.of(table.RELAY_REFUSED, int(self._is_refused()), self._group),
            *(Sample.of(table.RELAY_MOVED, count, self._group, topic) for topic, count in self._moved.copy().items()),
            *self._last,
            *self._of_librdkafka(),
        ]

    def carried_out(self, ticks: Ticks, now: int) -> None:
        """Count the records that were written at this time of the brokers."""
        observe, moved = self._lateness.observe, self._moved
        own = self._names.commands
        for tick in ticks.values():
            for write in tick.writes:
                if write.delay_topic is None:
                    observe((now - write.schedule.due) / _MILLISECONDS)
                elif (source := write.record.topic()) != own:  # otherwise it is new, and was in no delay topic yet
                    moved[source] += 1

    def look(self, now: float, brokers_now: Callable[[], int], *, at_end: bool = False) -> None:
        """Make new samples, if it is time. The thread of the rounds calls this in each round, and once at the end."""
        if now >= self._look_at or at_end:
            self._look_at = now + _LOOK_EVERY
            self._last = [*self._of_delay_topics(), *self._of_memory(brokers_now)]

    def _of_delay_topics(self) -> Iterator[Sample]:
        pending: defaultdict[str, int] = defaultdict(int)
        partitions: Counter[str] = Counter()
        for place, held in self._relays.held_records().items():
            topic, _ = place
            partitions[topic] += 1
            end = self._known_end(place)
            pending[topic] += held.records + (0 if end is None else max(0, end - held.position))
        for topic, records in pending.items():
            yield Sample.of(table.RELAY_PENDING, records, self._group, topic)
            yield Sample.of(table.RELAY_PARTITIONS, partitions[topic], self._group, topic)

    def _of_memory(self, brokers_now: Callable[[], int]) -> Iterator[Sample]:
        yield Sample.of(table.RELAY_HELD, self._relays.held_bytes, self._group)
        due = self._relays.earliest_due()  # without partitions, the brokers' time might be unknown
        overdue = 0.0 if due is None else max(0.0, (brokers_now() - due) / _MILLISECONDS)
        yield Sample.of(table.RELAY_OVERDUE, overdue, self._group)
