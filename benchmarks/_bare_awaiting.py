"""The least that awaiting each record can cost: confluent-kafka, and a future a record that the loop itself resolves.

No accumulator, no levels, no topics apart, no room: what a producer for asyncio is measured against.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

import confluent_kafka as ck

from headway.kafka.binding.capi import wake_on_events
from headway.runtime.wakeup import Wakeup


class BareAwaiting:
    """Hands over at once, and takes the reports in the loop, every hundredth send and when librdkafka wakes it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._producer = ck.Producer({"queue.buffering.max.messages": 1_000_000, **config})
        self._loop = asyncio.get_running_loop()
        self._reported: deque[tuple[asyncio.Future[ck.Message], ck.Message]] = deque()
        self._wake = Wakeup()
        wake_on_events(self._producer, self._wake.fd)
        self._leave_loop = self._wake.watch(self._loop, self._serve)
        self._sends = 0

    def send(self, topic: str, value: bytes, key: str) -> asyncio.Future[ck.Message]:
        """A future that resolves with the delivered message."""
        awaited: asyncio.Future[ck.Message] = self._loop.create_future()
        self._producer.produce(
            topic, value, key, on_delivery=lambda _, message: self._reported.append((awaited, message))
        )
        self._sends += 1
        if self._sends % 100 == 0:
            self._serve()
        return awaited

    def _serve(self) -> None:
        self._producer.poll(0)
        while self._reported:
            awaited, message = self._reported.popleft()
            assert message.error() is None
            awaited.set_result(message)

    def close(self) -> None:
        """Let go."""
        self._leave_loop()
        wake_on_events(self._producer, None)
        self._producer.close()
        self._wake.close()
