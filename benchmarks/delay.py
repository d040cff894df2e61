"""Delayed delivery: how late records are, how often they are written, and how much memory the pending take.

(a) Lateness at 1,000, 5,000 and 20,000 due records a second in both modes, by the target's log-append time and when a
`read_committed` consumer has the record, beside a bare loop (consume, heap, produce or transaction) and the broker's
own transaction round trip. (b) Writes per record by delay, beside the scheme that rescans its buckets. (c) Scheduling
beside plain `produce` with a callback. (d) Everything due in one second. (e) A million pending, and the relay's memory.
"""

import heapq
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
from _harness import Options, Report, main
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import Ladder, Relay, Scheduler
from headway.core.delay_lines import fit
from headway.delay.carrying_out import Mode
from headway.delay.topics import create_topics

QUESTION = "How late are delayed records, and what do they cost?"
RESCANNING = {1: 9.5, 60: 12.5, 3600: 17.0, 86_400: 20.0, 31_536_000: 27.0}
WRITES = {1: 3, 60: 5, 3600: 8, 86_400: 10, 31_536_000: 14}
VALUE = b"x" * 100
MODES: tuple[Mode, ...] = ("low-latency", "exactly-once")
STAMPED = {"message.timestamp.type": "LogAppendTime"}


class Lateness(NamedTuple):
    """Milliseconds after the due time: half of all records, 99 of 100, and all."""

    p50: float
    p99: float
    most: float


def measure(report: Report, options: Options) -> None:
    """All parts in one run."""
    with options.broker() as servers:
        transaction_round_trip(report, servers)
        for rate in (1000,) if options.quick else (1000, 5000, 20_000):
            for mode in MODES:
                lateness(report, servers, rate, mode, 2 if options.quick else 5)
        scheduling(report, servers, 20_000 if options.quick else 200_000)
        flood(report, servers, 5000 if options.quick else 100_000)
        pending(report, servers, 20_000 if options.quick else 1_000_000)
    writes(report)


def new_topic(servers: str, partitions: int = 1) -> str:
    """A topic that brokers stamp."""
    topic = f"target-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, 1, config=STAMPED)])[topic].result()
    return topic


# (a)


def transaction_round_trip(report: Report, servers: str) -> None:
    """Begin, one record, commit; with a pause, so that none waits for the one before."""
    topic = new_topic(servers)
    settings = {"bootstrap.servers": servers, "transactional.id": uuid.uuid4().hex, "retry.backoff.ms": 1}
    producer = ck.Producer(settings)
    producer.init_transactions()
    took = []
    for _ in range(50):
        began = time.perf_counter()
        producer.begin_transaction()
        producer.produce(topic, VALUE)
        producer.flush()
        producer.commit_transaction()
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(0.02)
    report.add("(a) a transaction of one record", "librdkafka", statistics.median(took), "ms, p50")


def lateness(report: Report, servers: str, rate: int, mode: Mode, seconds: float) -> None:
    """The relay beside the bare loop, with the same due times."""
    bare = _measure(report, servers, rate, seconds, lambda name: Bare(servers, name, mode))
    ours = _measure(
        report, servers, rate, seconds, lambda name: Relay({"bootstrap.servers": servers}, name=name, mode=mode)
    )
    for system, found in (("bare loop", bare), ("relay", ours)):
        for what, figures in zip(("appended", "read"), found, strict=True):
            for name, value in zip(("p50", "p99", "max"), figures, strict=True):
                report.add(f"(a) {mode}, {rate:,}/s, {what}", system, value, f"ms late, {name}")
    for index, name in enumerate(("p50", "p99")):
        ratio = ours[0][index] / max(1.0, bare[0][index])
        report.at_most(f"(a) {mode}, {rate:,}/s: {name} × the bare loop's", ratio, 1.5)


class Reader:
    """Reads a target from its beginning, and notes when it has which record."""

    def __init__(self, servers: str, topic: str) -> None:
        config = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
        self._consumer = ck.Consumer({**config, "fetch.queue.backoff.ms": 1})
        self._consumer.assign([ck.TopicPartition(topic, 0, 0)])
        self.records: list[tuple[int, int, float]] = []  # number, appended, read
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._stopping = False
        self._thread.start()

    def _read(self) -> None:
        while not self._stopping:
            messages = self._consumer.consume(500, 0.002)
            now = time.time() * 1000
            self.records += [(int(m.key() or b"-1"), m.timestamp()[1], now) for m in messages if m.error() is None]

    def wait(self, count: int, within: float) -> list[tuple[int, int, float]]:
        """The records, once there are so many."""
        deadline = time.monotonic() + within
        while len(self.records) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        self._stopping = True
        self._thread.join()
        self._consumer.close()
        assert len(self.records) == count, f"{len(self.records)} of {count} records came."
        return self.records


def _measure(
    report: Report, servers: str, rate: int, seconds: float, make: Callable[[str], Any]
) -> tuple[Lateness, Lateness]:
    name, target = f"delay-{uuid.uuid4().hex[:8]}", new_topic(servers)
    create_topics({"bootstrap.servers": servers}, name, Ladder.exponential(1, 2, 6), 1)
    relay = make(name)
    thread = threading.Thread(target=relay.run)
    thread.start()
    count = int(rate * seconds)
    reader = Reader(servers, target)
    with Scheduler({"bootstrap.servers": servers, "linger.ms": 5}, name=name) as scheduler:
        first = time.time() + 3.5
        keep = []
        for i in range(count):  # at the rate at which they come due
            while (ahead := first + i / rate - time.time()) > 2.5:
                time.sleep(0.002)
            keep.append(scheduler.send_later(b"%d" % i, VALUE, target, ahead))
    due_ms = [round(handle.due * 1000) for handle in keep]
    found = reader.wait(count, 60 + seconds)
    relay.stop()
    thread.join()
    relay.close()
    if isinstance(relay, Relay):
        report.add(f"(b) measured at {rate:,}/s", "relay", relay.counts["read"] / count, "reads of a record")
        written = 1 + (relay.counts["moved"] + relay.counts["delivered"]) / count
        report.add(f"(b) measured at {rate:,}/s", "relay", written, "writes of a record")
    return (
        _lateness([appended - due_ms[number] for number, appended, _ in found]),
        _lateness([read - due_ms[number] for number, _, read in found]),
    )


def _lateness(late: list[float]) -> Lateness:
    late.sort()
    assert late[0] >= 0, "A record was early."
    return Lateness(late[len(late) // 2], late[len(late) * 99 // 100], late[-1])


class Bare:
    """What anybody would write: consume all lines at once, keep everything in a heap, produce what is due."""

    def __init__(self, servers: str, name: str, mode: Mode) -> None:
        self._topics = [f"{name}.line-{line}" for line in (0, *Ladder.exponential(1, 2, 6).lines)]
        config = {"bootstrap.servers": servers, "group.id": name, "auto.offset.reset": "earliest"}
        self._consumer = ck.Consumer({**config, "fetch.queue.backoff.ms": 1, "enable.auto.commit": False})
        self._consumer.assign([ck.TopicPartition(topic, 0, 0) for topic in self._topics])
        own = {"transactional.id": name, "retry.backoff.ms": 1} if mode == "exactly-once" else {}
        self._producer = ck.Producer({"bootstrap.servers": servers, "linger.ms": 0, "enable.idempotence": True, **own})
        self._transactional = bool(own)
        self._stopping = False

    def run(self) -> None:
        """The loop."""
        import msgspec  # noqa: PLC0415

        decode = msgspec.json.Decoder(dict).decode
        if self._transactional:
            self._producer.init_transactions()
        heap: list[tuple[int, int, Any]] = []
        number = 0
        while not self._stopping:
            for message in self._consumer.consume(500, 0.001):
                if message.error() is None:
                    due = decode(dict(message.headers() or [])["headway.delay"])  # type: ignore[arg-type]
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


# (b)


def writes(report: Report) -> None:
    """How often a record is written, its delivery included: with the default lines, and with fitted ones."""
    ladder = Ladder.exponential()
    fitted = fit({seconds * 1000: 1.0 for seconds in RESCANNING}, 8)
    for seconds, rescanning in RESCANNING.items():
        case = f"(b) a delay of {seconds:,} s"
        report.add(case, "rescanning buckets", rescanning, "writes")
        report.add(case, "powers of two", ladder.writes(seconds * 1000), "writes")
        report.add(case, "8 fitted lines", fitted.writes(seconds * 1000), "writes")
        report.at_most(f"{case}: writes", ladder.writes(seconds * 1000), WRITES[seconds])
    report.at_most("(b) a year with fitted lines: writes", fitted.writes(31_536_000_000), 7)


# (c)


def scheduling(report: Report, servers: str, count: int) -> None:
    """`send_later` beside `produce`, both until all is acknowledged."""
    name, topic = f"delay-{uuid.uuid4().hex[:8]}", new_topic(servers)
    create_topics({"bootstrap.servers": servers}, name, Ladder.exponential(1, 2, 6), 1)
    settings = {"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    producer = ck.Producer({**settings, "enable.idempotence": True})
    began = time.perf_counter()
    for i in range(count):
        producer.produce(topic, VALUE, b"%d" % i, on_delivery=lambda error, message: None)
        if not i % 100:
            producer.poll(0)
    producer.flush()
    plain = count / (time.perf_counter() - began)
    with Scheduler(settings, name=name) as scheduler:
        began = time.perf_counter()
        for i in range(count):
            scheduler.send_later(b"%d" % i, VALUE, topic, 3600)
        scheduler.flush()
        ours = count / (time.perf_counter() - began)
    report.add("(c) scheduling", "produce with a callback", plain, "records/s")
    report.add("(c) scheduling", "send_later", ours, "records/s")
    report.at_least("(c) send_later, × produce", ours / plain, 0.5)


# (d) and (e)


def flood(report: Report, servers: str, count: int) -> None:
    """How long after their due second the last of many is there."""
    name, target = f"delay-{uuid.uuid4().hex[:8]}", new_topic(servers)
    create_topics({"bootstrap.servers": servers}, name, Ladder.exponential(1, 2, 6), 4)
    with Scheduler({"bootstrap.servers": servers, "linger.ms": 5}, name=name) as scheduler:
        due = time.time() + 5 + count / 15_000
        for i in range(count):
            scheduler.send_later(b"%d" % i, VALUE, target, due - time.time())
    with Relay({"bootstrap.servers": servers}, name=name) as relay:
        thread = threading.Thread(target=relay.run)
        thread.start()
        found = Reader(servers, target).wait(count, 120)
        relay.stop()
        thread.join()
    last = max(appended for _, appended, _ in found)
    report.add(f"(d) {count:,} due at once", "relay", last / 1000 - due, "s until the last is there")


def pending(report: Report, servers: str, count: int) -> None:
    """The peak of a relay's resident memory with so many pending, and how often it has read them."""
    name, target = f"delay-{uuid.uuid4().hex[:8]}", new_topic(servers)
    create_topics({"bootstrap.servers": servers}, name, Ladder.exponential(), 4)
    peak = {}
    for pending_count in (0, count):
        with Scheduler({"bootstrap.servers": servers, "linger.ms": 5}, name=name) as scheduler:
            for i in range(pending_count):
                scheduler.send_later(b"%d" % i, VALUE, target, 3600 + i % 864_000)
        command = [sys.executable, "-c", "from headway.cli import main; main()", "relay", "--name", name]
        with subprocess.Popen([*command, "-b", servers], stderr=subprocess.DEVNULL) as relay:
            time.sleep(15 if pending_count > 100_000 else 6)
            status = Path(f"/proc/{relay.pid}/status").read_text()
            peak[pending_count] = int(status.split("VmHWM:")[1].split()[0]) / 1024
            relay.terminate()
    report.add("(e) the relay with nothing pending", "relay", peak[0], "MiB at its peak")
    report.add(f"(e) the relay with {count:,} pending", "relay", peak[count], "MiB at its peak")


if __name__ == "__main__":
    main(QUESTION, measure)
