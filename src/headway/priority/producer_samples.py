"""Makes the samples of a producer, from what its parts have counted."""

import threading
from collections import defaultdict
from collections.abc import Iterator

from headway.kafka.producer.delivery import Destination
from headway.kafka.producer.sender import Sender
from headway.metrics import table
from headway.metrics.histogram import Histogram, HistogramValue
from headway.metrics.samples import Sample
from headway.priority.destinations import Destinations


class ProducerSamples:
    """Makes the samples of a producer. Any thread can call it, even after the producer was closed.

    Args:
        client: The user's `client.id`.
        memory: The setting `buffer.memory`, in bytes.
        sender: Passes the records on.
        destinations: The topics and levels that the producer sends to.
    """

    def __init__(self, client: str, memory: int, sender: Sender, destinations: Destinations) -> None:
        self._client = client
        self._memory = memory
        self._sender = sender
        self._destinations = destinations
        self._waits = Histogram(table.PRODUCER_SEND_WAIT.bounds)
        self._counting = threading.Lock()
        destinations.measure()

    def waited(self, seconds: float) -> None:
        """Count a call that has waited for buffer space. Any thread can call this."""
        with self._counting:
            self._waits.observe(seconds)

    def samples(self) -> list[Sample]:
        """Return the current samples, without a request to Kafka."""
        destinations = self._destinations.those()
        return [
            Sample.of(table.PRODUCER_BUFFERED_BYTES, self._sender.queued_bytes, self._client),
            Sample.of(table.PRODUCER_BUFFER_LIMIT, self._memory, self._client),
            Sample.of(table.PRODUCER_REFUSED, self._destinations.refused, self._client),
            Sample.of(table.PRODUCER_SEND_WAIT, self._waits.value(), self._client),
            *(sample for each in destinations for sample in self._of_destination(each)),
            *self._of_levels(destinations),
            *self._sender.client.statistics.samples(self._client),
        ]

    def _level_of(self, destination: Destination) -> str:
        return str(destination.level) if self._destinations.has_levels else ""

    def _of_destination(self, destination: Destination) -> Iterator[Sample]:
        labels = self._client, destination.topic, self._level_of(destination)
        counts = destination.counts()
        of_metrics = {
            table.PRODUCER_BUFFERED: max(0, counts.under_way),
            table.PRODUCER_SENT: counts.sent,
            table.PRODUCER_DELIVERED: counts.delivered,
            table.PRODUCER_EXPIRED: destination.expired,
        }
        yield from (Sample.of(metric, value, *labels) for metric, value in of_metrics.items())
        for error, failed in destination.failed_by_error.copy().items():
            yield Sample.of(table.PRODUCER_FAILED, failed, *labels, error)

    def _of_levels(self, destinations: list[Destination]) -> Iterator[Sample]:
        levels: defaultdict[str, list[HistogramValue]] = defaultdict(list)
        for each in destinations:
            if each.times:
                levels[self._level_of(each)].append(each.times.value())
        for level, values in levels.items():
            yield Sample.of(table.PRODUCER_DELIVERY_TIME, sum(values[1:], values[0]), self._client, level)
