"""Makes spans of the waits of the records that a relay delivers."""

from collections.abc import Iterator
from typing import Any

from headway.core.delay.relay_tick import RelayTick, Write
from headway.delay.records import RelayRecord, Writing
from headway.records.record_types import headers_of
from headway.tracing.spans import Spans


class TracedWriting(Writing):
    """Makes a span of the time that each delivered record has waited since it was scheduled.

    If a round is repeated after a failure, so are its spans. A recurring schedule has none, because it does not wait
    for one delivery.
    """

    def __init__(self, spans: Spans, *args: Any) -> None:
        super().__init__(*args)
        self._spans = spans

    def records(self, partition: int, tick: RelayTick, now: int) -> Iterator[RelayRecord]:
        """Make the spans, and yield all records that the tick writes."""
        for write in tick.writes:
            if write.delay_topic is None and write.schedule.recurrence is None:
                self._waited(write, now)
        yield from super().records(partition, tick, now)

    def _waited(self, write: Write, now: int) -> None:
        schedule = write.schedule
        self._spans.delayed(schedule.topic, headers_of(write.record), schedule.at, now)
