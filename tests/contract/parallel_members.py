"""What the tests of the parallel consumer share: plain topics, and members that note what they handle."""

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka as ck

from headway import ConsumerRecord, Context, Ordering, ParallelConsumer

from .conftest import Cluster


def plain_topic(cluster: Cluster) -> str:
    """A new topic without levels."""
    topic = f"jobs-{uuid.uuid4().hex[:8]}"
    cluster.create_topics([topic])
    return topic


def send(cluster: Cluster, topic: str, records: Iterable[tuple[str | None, str]], partition: int = -1) -> None:
    """Store records of key and value."""
    producer = ck.Producer(cluster.config({"linger.ms": 5}))
    for key, value in records:
        producer.produce(topic, value, key, partition)
    assert producer.flush(30) == 0
    producer.close()


def consumer(cluster: Cluster, topic: str, options: dict[str, Any] | None = None, **settings: Any) -> ParallelConsumer:
    """A consumer whose group is named like its topic; a setting of None is left out."""
    config = {
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 6000,
        "auto.commit.interval.ms": 600_000,
    } | settings
    config = {key: value for key, value in config.items() if value is not None}
    parallel = ParallelConsumer(cluster.config(config), **(options or {}))
    parallel.subscribe(topic)
    return parallel


def wait_for(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


class Member:
    """A consumer whose `run` has a thread of its own."""

    def __init__(self, parallel: ParallelConsumer, handler: Callable[[ConsumerRecord, Context], Any]) -> None:
        self.consumer = parallel
        self.error: BaseException | None = None
        self._handler = handler
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.consumer.run(self._handler)
        except BaseException as error:
            self.error = error

    def stop(self, *, drain: bool = True) -> None:
        """Close it; raises what its run raised."""
        self.consumer.close(drain=drain)
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error:
            raise self.error


ORDERINGS = list(Ordering)
