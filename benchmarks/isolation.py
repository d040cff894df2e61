"""What does a flood do to the records of another topic, another level and another partition?

A record goes to a quiet place every 5 ms, first alone, then beside a thread that sends 1 KB records as fast as there is
room for them. How many find no room, and the 99th percentile of the time to delivery. The bare producer has
librdkafka's own queue, which is one for all. What of it is the machine's, a second bare producer says that has the
quiet place's records to itself: it shares no queue and no connection with Headway's flood, only processors and broker.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import confluent_kafka as ck
from _harness import Options, Report, main, percentile, ratio
from _proxied import proxied
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import Producer

QUESTION = "What does a flood do to its neighbours?"
EVERY = 0.005
ROUND_TRIPS = (0.005, 0.050)
SETTINGS = {"linger.ms": 1, "enable.idempotence": True}
FLOOD, QUIET = b"x" * 1000, b"x" * 100

Send = Callable[[Callable[[Any, Any], None]], None]
"""Send one quiet record and call back; raises when there is no room."""


class Outcome(NamedTuple):
    """The 99th percentile in milliseconds, and the part that found no room."""

    p99: float
    refused: float


def audit(send: Send, seconds: float) -> Outcome:
    """Send every 5 ms."""
    took, refused, count = list[float](), 0, int(seconds / EVERY)
    begin = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begin + number * EVERY - time.monotonic()))
        started = time.perf_counter()
        try:
            send(lambda *_, started=started: took.append(time.perf_counter() - started))
        except BufferError:
            refused += 1
    until = time.monotonic() + 30
    while len(took) + refused < count and time.monotonic() < until:
        time.sleep(0.01)
    return Outcome(percentile(took, 99) * 1000 if took else float("inf"), refused / count)


def beside(flood: Callable[[], None], work: Callable[[], Outcome]) -> Outcome:
    """Work while a thread floods."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            flood()

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(1.0)  # until the queues are full
    try:
        return work()
    finally:
        ended.set()
        thread.join()


@contextmanager
def bare_producer(servers: str) -> Iterator[ck.Producer]:
    """confluent-kafka's, with a thread that serves it."""
    producer = ck.Producer({"bootstrap.servers": servers, **SETTINGS})
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            producer.poll(0.1)

    thread = threading.Thread(target=serve)
    thread.start()
    yield producer
    ended.set()
    thread.join()
    producer.purge()
    producer.flush(5)


def bare(servers: str, topic: str, seconds: float) -> tuple[Outcome, Outcome]:
    """librdkafka's queue, for two topics."""
    with bare_producer(servers) as producer:
        producer.produce(f"{topic}-0", QUIET)
        producer.flush()  # it has its identity, and the topics

        def flood() -> None:
            try:
                producer.produce(f"{topic}-flood-0", FLOOD)
            except BufferError:
                time.sleep(0.0005)

        send: Send = lambda told: producer.produce(f"{topic}-0", QUIET, on_delivery=told)  # noqa: E731 - a typed name, used twice
        alone = audit(send, seconds)
        return alone, beside(flood, lambda: audit(send, seconds))


def apart(servers: str, topic: str, seconds: float) -> tuple[Outcome, Outcome]:
    """A bare producer for the quiet topic alone, beside Headway's flood of another."""
    with (
        bare_producer(servers) as producer,
        closing(Producer({"bootstrap.servers": servers, "levels": 3, **SETTINGS})) as floods,
    ):
        producer.produce(f"{topic}-0", QUIET)
        producer.flush()
        floods.send(f"{topic}-flood", QUIET, partition=0).result()
        send: Send = lambda told: producer.produce(f"{topic}-0", QUIET, on_delivery=told)  # noqa: E731 - a typed name, used twice
        alone = audit(send, seconds)
        return alone, beside(
            lambda: void(floods.send(f"{topic}-flood", FLOOD, partition=0)), lambda: audit(send, seconds)
        )


def ours(servers: str, topic: str, seconds: float, place: str) -> tuple[Outcome, Outcome]:
    """Headway, for a quiet topic, level or partition."""
    producer = Producer({"bootstrap.servers": servers, "levels": 3, **SETTINGS})
    quiet: dict[str, dict[str, Any]] = {
        "topic": {"topic": topic},
        "level": {"topic": f"{topic}-flood", "level": 2},
        "partition": {"topic": f"{topic}-flood", "partition": 1},
    }

    def send(told: Callable[[Any, Any], None]) -> None:
        if producer.try_send(value=QUIET, on_delivery=told, **quiet[place]) is None:
            raise BufferError

    with closing(producer):
        producer.send(f"{topic}-flood", QUIET, partition=0).result()
        alone = audit(send, seconds)
        return alone, beside(
            lambda: void(producer.send(f"{topic}-flood", FLOOD, partition=0)), lambda: audit(send, seconds)
        )


def void(_: object) -> None:
    """A future that nobody looks at."""


def measure(report: Report, options: Options) -> None:
    """At each distance, quickly at the shorter: bare, then ours for each kind of neighbour."""
    seconds = 2.0 if options.quick else 15.0
    with options.broker() as servers:
        admin = AdminClient({"bootstrap.servers": servers})
        for round_trip in ROUND_TRIPS[:1] if options.quick else ROUND_TRIPS:
            topic = f"isolation-{uuid.uuid4().hex[:8]}"
            names = [f"{name}-{level}" for name in (topic, f"{topic}-flood") for level in range(3)]
            for created in admin.create_topics([NewTopic(name, 3, 1) for name in names]).values():
                created.result()
            with proxied(servers, round_trip) as through:
                case = f"topic, {round_trip * 1000:g} ms"
                _note(report, case, "confluent-kafka", *bare(through, topic, seconds))
                _note(report, case, "one to itself, headway floods", *apart(through, topic, seconds))
                for place in ("topic", "level", "partition"):
                    case = f"{place}, {round_trip * 1000:g} ms"
                    alone, flooded = ours(through, topic, seconds, place)
                    _note(report, case, "headway", alone, flooded)
                    report.at_most(f"{case}: refused", flooded.refused, 0)
                    report.at_most(f"{case}: p99, times what it is alone", ratio(flooded.p99, alone.p99), 1.5)


def _note(report: Report, case: str, system: str, alone: Outcome, flooded: Outcome) -> None:
    report.add(case, f"{system}, alone: p99", alone.p99, "ms")
    report.add(case, f"{system}, beside a flood: p99", flooded.p99, "ms")
    report.add(case, f"{system}, beside a flood: refused", flooded.refused * 100, "%")


if __name__ == "__main__":
    main(QUESTION, measure)
