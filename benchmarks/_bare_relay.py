"""What anybody would write instead of a relay: the baseline of `delay.py`, in a process of its own.

Run with servers, scheduler's name and mode; it ends at SIGTERM.
"""

import heapq
import signal
import sys
import time
from typing import Any

import confluent_kafka as ck
import msgspec

from headway import Ladder

LADDER = Ladder.exponential(1, 2, 6)


class Bare:
    """What anybody would write: consume all delay topics at once, keep everything in a heap, produce what is due."""

    def __init__(self, servers: str, name: str, mode: str) -> None:
        self._topics = [f"{name}.line-{delay_topic}" for delay_topic in (0, *LADDER.delays)]
        config = {"bootstrap.servers": servers, "group.id": name, "auto.offset.reset": "earliest"}
        self._consumer = ck.Consumer({**config, "fetch.queue.backoff.ms": 1, "enable.auto.commit": False})
        self._consumer.assign([ck.TopicPartition(topic, 0, 0) for topic in self._topics])
        own = {"transactional.id": name, "retry.backoff.ms": 1} if mode == "exactly-once" else {}
        self._producer = ck.Producer({"bootstrap.servers": servers, "linger.ms": 0, "enable.idempotence": True, **own})
        self._transactional = bool(own)
        self._stopping = False

    def run(self) -> None:
        """The loop."""
        decode = msgspec.json.Decoder(dict).decode
        if self._transactional:
            self._producer.init_transactions()
        heap: list[tuple[int, int, Any]] = []
        number = 0
        while not self._stopping:
            for message in self._consumer.consume(500, 0.001):
                # A scheduler also writes empty records, which only get a broker's timestamp.
                if message.error() is None and (headers := message.headers()):
                    due = decode(dict(headers)["headway.delay"])  # type: ignore[arg-type]
                    heapq.heappush(heap, (due["due"], number, (due["topic"], message)))
                    number += 1
            now = time.time() * 1000
            if heap and heap[0][0] <= now:
                self._deliver(heap, now)
            self._producer.poll(0)

    def _deliver(self, heap: list[tuple[int, int, Any]], now: float) -> None:
        if self._transactional:
            self._producer.begin_transaction()
        while heap and heap[0][0] <= now:
            topic, message = heapq.heappop(heap)[2]
            self._producer.produce(topic, message.value(), message.key())
        if self._transactional:
            self._producer.flush()
            offsets = [ck.TopicPartition(self._topics[0], 0, 0)]
            self._producer.send_offsets_to_transaction(offsets, self._consumer.consumer_group_metadata())
            self._producer.commit_transaction()

    def stop(self) -> None:
        """End the loop."""
        self._stopping = True

    def close(self) -> None:
        """Let go."""
        self._producer.flush(5)
        self._consumer.close()


if __name__ == "__main__":
    loop = Bare(*sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    loop.run()
    loop.close()
