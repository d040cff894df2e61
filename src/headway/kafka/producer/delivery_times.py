"""Measures how long records took from `send` to their delivery reports."""

import time
from typing import TYPE_CHECKING

from headway.metrics.histogram import Histogram, HistogramValue
from headway.metrics.table import PRODUCER_DELIVERY_TIME

if TYPE_CHECKING:
    from headway.kafka.producer.delivery import Destination, Report, Tally
    from headway.kafka.producer.sendable import Sendable


class DeliveryTimes:
    """The delivery times of the records for one destination.

    To ask librdkafka for the time of each record would cost a stream of records more than 3 %. So only the first record
    of each queue in a round of delivery reports is asked for, and the records after it count with its time.

    Invariant: `sample` is called by the thread that takes the reports.
    """

    def __init__(self, destination: "Destination") -> None:
        self._destination = destination
        self._histogram = Histogram(PRODUCER_DELIVERY_TIME.bounds)
        self._before = destination.counts().delivered  # how many records were delivered before the measurements
        self._tally: Tally | None = None
        self._seen = 0  # how many delivered records of the tally are counted
        self._last: float | None = None

    def sample(self, record: "Sendable", message: "Report") -> None:
        """Measure a record that was reported. Call this before the record is counted as delivered."""
        since = getattr(record, "since", None)  # it is set only if the record has waited for librdkafka
        seconds = message.latency() if since is None else time.monotonic() - since
        if seconds is None:  # it was not delivered
            return
        tally = record.tally
        if tally is not self._tally:
            self._tally, self._seen = tally, tally.delivered
        if self._last is not None and tally.delivered > self._seen:
            self._histogram.observe(self._last, tally.delivered - self._seen)
        self._seen, self._last = tally.delivered, seconds

    def value(self) -> HistogramValue:
        """Return the histogram of all records that were delivered since the start of the measurements."""
        counted = self._histogram.value()
        rest = self._destination.counts().delivered - self._before - counted.count
        if self._last is None or rest <= 0:
            return counted
        uncounted = Histogram(PRODUCER_DELIVERY_TIME.bounds)
        uncounted.observe(self._last, rest)
        return counted + uncounted.value()
