"""Step 1: the flights go through Kafka by priority, and are consumed while they are still being produced.

The consumer does work that takes a while for each record, so that it keeps up with three quarters of what is really
sent: what does not fit must wait, and who waits is what priority is about.
"""

import math
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain

from demo.evidence import NUMBER, Evidence
from demo.flights import LEVELS, FlightRecord
from demo.live import Display
from headway import PriorityConsumer, Producer
from headway.core.levels.naming import level_topic
from headway.core.levels.policies import PolicyName
from headway.kafka.admin import Admin

TOPIC = "flights"
PARTITIONS = 6

# Each of the 18 partitions is a request of its own: with less linger there are more of them than two cores can serve.
_LINGER_MS = 20

AIM_PER_S = 20_000
"""The flights sent per second, on a machine that is fast enough."""

KEEPS_UP_WITH = 0.75
"""The part of what is sent that the consumer's work keeps up with."""

_LATEST_S = 0.05  # a sender that has fallen behind its pace by more does not make up for it
_BATCH = 25
_LOOK_EVERY_S = 0.002
_JOIN_WITHIN_S = 60.0
_GIVE_UP_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How fast the flights are to be sent: a year takes half a minute, a short run ten seconds, if the machine can."""

    records: int
    at_least_s: float = 8.0

    @property
    def sent_per_s(self) -> float:
        """How many records are sent in a second, at most."""
        return min(AIM_PER_S, self.records / self.at_least_s)

    @property
    def capacity(self) -> int:
        """`max.poll.records`: work for 8 ms at this pace, and no less than the shares need."""
        return max((1 << LEVELS) - 1, round(KEEPS_UP_WITH * self.sent_per_s * 0.008))

    def seconds(self, per_s: float) -> float:
        """Estimate the seconds to send and consume all records, on a machine that sends this many per second."""
        return self.records / min(per_s, self.sent_per_s) / KEEPS_UP_WITH


class Pace:
    """Lets so many records a second through, evenly."""

    def __init__(self, per_s: float) -> None:
        self._seconds = 1 / per_s
        self._free_at = 0.0

    def work(self, records: int) -> None:
        """Take the time of so many records."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now - _LATEST_S) + records * self._seconds
        if self._free_at > now:
            time.sleep(self._free_at - now)


class Sending:
    """The flights on their way into Kafka, on a thread of their own."""

    def __init__(self, servers: str, topic: str, flights: Iterable[FlightRecord], pace: Pace) -> None:
        self.sent = [0] * LEVELS
        self._topic = topic
        self._flights = flights
        self._pace = pace
        config = {"bootstrap.servers": servers, "levels": LEVELS, "linger.ms": _LINGER_MS}
        self._producer = Producer(config)
        self._stop = threading.Event()
        self._began = self._ended = math.nan

    @property
    def delivered(self) -> list[int]:
        """How many records of each level are in Kafka."""
        return self._producer.metrics().delivered

    @property
    def per_s(self) -> float:
        """How many records a second went into Kafka, once all have."""
        return sum(self.delivered) / (self._ended - self._began)

    def run(self) -> None:
        """Send all, unless `stop` is called."""
        try:
            with self._producer:
                for number, flight in enumerate(self._flights):
                    if self._stop.is_set():
                        return
                    self._send(number, flight)
                    if number == 0:  # it waits for librdkafka's producer id, which is no measure of the machine
                        self._producer.flush()
                        self._began = time.monotonic()
                    if number % _BATCH == 0:
                        self._pace.work(_BATCH)
        finally:
            self._ended = time.monotonic()

    def stop(self) -> None:
        """Stop sending."""
        self._stop.set()

    def worked_off(self) -> float:
        """Return how many records the simulated work has handled so far.

        While records are sent, it has handled a fixed fraction of those in Kafka, so a backlog grows on any
        machine. After that, the work continues at its average speed.
        """
        delivered = sum(self.delivered)
        if math.isnan(self._ended):
            return KEEPS_UP_WITH * delivered
        return KEEPS_UP_WITH * (delivered + self.per_s * (time.monotonic() - self._ended))

    def _send(self, number: int, flight: FlightRecord) -> None:
        headers = [(NUMBER, str(number).encode())]
        self._producer.send(self._topic, flight.value, flight.key, level=flight.level, headers=headers)
        self.sent[flight.level] += 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The records sent at each level, their rate, and the evidence of the consumer."""

    sent: list[int]
    sent_per_s: float
    evidence: Evidence


def run(
    servers: str,
    flights: Iterable[FlightRecord],
    plan: Plan,
    policy: PolicyName,
    display: Display | None = None,
    topic: str = TOPIC,
) -> Outcome:
    """Send the flights and consume them at the same time, until all have arrived or no more arrive."""
    create_topics(servers, topic)
    config = {
        "bootstrap.servers": servers,
        "group.id": topic,
        "levels": LEVELS,
        "max.poll.records": plan.capacity,
        "auto.offset.reset": "earliest",
    }
    sending = Sending(servers, topic, _ready(flights), Pace(plan.sent_per_s))
    evidence = Evidence(LEVELS, plan.records, plan.capacity)
    with PriorityConsumer(config, policy=policy) as consumer, ThreadPoolExecutor(1) as thread:
        _join(consumer, topic)
        sender = thread.submit(sending.run)
        try:
            with display or nullcontext():
                _consume(consumer, sending, sender, evidence, display)
        finally:
            sending.stop()
    return Outcome(sending.sent, sending.per_s, evidence)


def warm_up(servers: str, flights: Iterable[FlightRecord]) -> float:
    """Run with some flights and other topics at full speed. Returns how many were sent per second.

    A JVM that has just started takes seconds to become fast.
    """
    flights = list(flights)
    return run(servers, flights, Plan(len(flights), at_least_s=0.1), "fair", topic="warm-up").sent_per_s


def create_topics(servers: str, topic: str) -> None:
    """Create the level topics of a topic."""
    Admin({"bootstrap.servers": servers}).create([level_topic(topic, level) for level in range(LEVELS)], PARTITIONS)


def _ready(flights: Iterable[FlightRecord]) -> Iterator[FlightRecord]:
    """Read the first flight, which takes as long as reading all of them."""
    remaining = iter(flights)
    return chain([next(remaining)], remaining)


def _join(consumer: PriorityConsumer, topic: str) -> None:
    """Wait for the partitions before anything is sent, or the first records would wait for the group."""
    consumer.subscribe(topic)
    deadline = time.monotonic() + _JOIN_WITHIN_S
    while len(consumer.assignment()) < LEVELS * PARTITIONS and time.monotonic() < deadline:
        consumer.poll(0.05)


def _consume(
    consumer: PriorityConsumer,
    sending: Sending,
    sender: "Future[None]",
    evidence: Evidence,
    display: Display | None,
) -> None:
    start = heard = time.monotonic()
    while not _ended(sending, sender, evidence):
        backlog = sum(sending.delivered) - evidence.total
        records = consumer.poll(0.1)
        now = time.monotonic()
        evidence.note_poll(records, backlog, now - start, time.time_ns() // 1_000_000)
        while sending.worked_off() < evidence.total and not _ended(sending, sender, evidence):
            time.sleep(_LOOK_EVERY_S)
            _show(display, start, sending, evidence)
        _show(display, start, sending, evidence)
        heard = time.monotonic() if records else heard
        if sender.done() and now - heard > _GIVE_UP_AFTER_S:
            break  # lost: the evidence shows it
    sender.result()
    _show(display, start, sending, evidence, last=True)


def _ended(sending: Sending, sender: "Future[None]", evidence: Evidence) -> bool:
    """Whether all that was sent has come, or no more is sent because of an error."""
    return sender.done() and (sender.exception() is not None or evidence.total >= sum(sending.sent))


def _show(display: Display | None, start: float, sending: Sending, evidence: Evidence, *, last: bool = False) -> None:
    if display:
        display.show(time.monotonic() - start, sending.delivered, evidence, last=last)
