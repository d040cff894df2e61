"""Delayed delivery: how late records are, how often they are written, and how much memory the pending take.

(a) Lateness at 1,000, 5,000 and 20,000 due records a second in both modes, by the target's log-append time and when a
`read_committed` consumer has the record, beside a bare loop (consume, heap, produce or transaction) and the broker's
own transaction round trip. (b) Writes per record by delay, beside the scheme that rescans its buckets. (c) Scheduling
beside plain `produce` with a callback. (d) Everything due in one second. (e) A million pending, and the relay's memory.
"""

import math
import re
import statistics
import subprocess
import sys
import threading
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
from _bare_relay import LADDER
from _harness import Options, Report, main, ratio
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import Ladder, Relay, Scheduler
from headway.core.delay.ladder import fit
from headway.delay.relay.output import Mode
from headway.delay.topics import create_topics

QUESTION = "How late are delayed records, and what do they cost?"
RESCANNING = {1: 9.5, 60: 12.5, 3600: 17.0, 86_400: 20.0, 31_536_000: 27.0}
WRITES = {1: 3, 60: 5, 3600: 8, 86_400: 10, 31_536_000: 14}
VALUE = b"x" * 100
RELAY = [sys.executable, "-c", "from headway.cli import main; main()", "relay"]
BARE = Path(__file__).with_name("_bare_relay.py")
MODES: tuple[Mode, ...] = ("low-latency", "exactly-once")
NOT_MEASURED = math.nan
STORED_WITHIN = 0.5  # seconds from send_later
PATIENCE = 300.0  # seconds, for a slow machine
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
        if not options.quick:
            warm_up(servers)
        for rate in (1000,) if options.quick else (1000, 5000, 20_000):
            for mode in MODES:
                lateness(report, servers, rate, mode, *((1, 1) if options.quick else (6, 3)))
        scheduling(report, servers, 20_000 if options.quick else 100_000, 1 if options.quick else 3)
        flood(report, servers, 5000 if options.quick else 100_000)
        pending(report, servers, *((20_000, 3) if options.quick else (1_000_000, 12)))
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


def warm_up(servers: str) -> None:
    """Java compiles what a busy broker does while the first seconds of it go by."""
    _measure(servers, 20_000, 2, lambda name: [*RELAY, "--name", name, "-b", servers])


def lateness(report: Report, servers: str, rate: int, mode: Mode, seconds: float, rounds: int) -> None:
    """The relay beside the bare loop, in turns and each in a process of its own, with the same due times.

    Of several rounds the medians count: a broker pauses now and then, for as long as all that is to be measured.
    """
    systems = {
        "bare loop": lambda name: [sys.executable, str(BARE), servers, name, mode],
        "relay": lambda name: [*RELAY, "--name", name, "--mode", mode, "-b", servers],
    }
    found: dict[str, list[tuple[Lateness, Lateness]]] = {system: [] for system in systems}
    for _ in range(rounds):
        for system, command in systems.items():
            appended, read, said = _measure(servers, rate, seconds, command)
            found[system].append((appended, read))
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (read|moved|delivered)", said)}
    report.add(f"(b) {mode}, {rate:,}/s", "relay", ratio(counts["read"], counts["delivered"]), "reads of a record")
    report.add(
        f"(b) {mode}, {rate:,}/s", "relay", 2 + ratio(counts["moved"], counts["delivered"]), "writes of a record"
    )
    middle = {system: [_median(each) for each in zip(*all_, strict=True)] for system, all_ in found.items()}
    for system, figures in middle.items():
        for what, late in zip(("appended", "read"), figures, strict=True):
            for name, value in zip(("p50", "p99", "max"), late, strict=True):
                report.add(f"(a) {mode}, {rate:,}/s, {what}", system, value, f"ms late, {name}")
    for index, name in enumerate(("p50", "p99")):
        times = ratio(middle["relay"][0][index], middle["bare loop"][0][index])
        report.at_most(f"(a) {mode}, {rate:,}/s: {name} × the bare loop's", times, 1.5)


def _median(rounds: Iterable[Lateness]) -> Lateness:
    """Of the rounds that could be measured."""
    measured = [each for each in rounds if not math.isnan(each.p50)]
    if not measured:
        return Lateness(NOT_MEASURED, NOT_MEASURED, NOT_MEASURED)
    return Lateness(*(statistics.median(figures) for figures in zip(*measured, strict=True)))


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
    servers: str, rate: int, seconds: float, command: Callable[[str], list[str]]
) -> tuple[Lateness, Lateness, str]:
    name, target = f"delay-{uuid.uuid4().hex[:8]}", new_topic(servers)
    create_topics({"bootstrap.servers": servers}, name, LADDER, 1)
    count = int(rate * seconds)
    with subprocess.Popen(command(name), stderr=subprocess.PIPE, text=True) as process:
        try:
            with Scheduler({"bootstrap.servers": servers}, name=name) as scheduler:
                scheduler.send_later(b"", VALUE, target, 0)
            Reader(servers, target).wait(1, PATIENCE)  # it has started
            reader = Reader(servers, target)
            due_ms, kept_pace = _schedule(servers, name, target, count, rate)
            found = [each for each in reader.wait(1 + count, PATIENCE + seconds) if each[0] >= 0]
        finally:  # otherwise the relay goes on after a Ctrl-C
            process.terminate()
        _, said = process.communicate()
    if not kept_pace:
        print(f"Not measured: this machine does not schedule {rate:,} records a second.", flush=True)
        nothing = Lateness(NOT_MEASURED, NOT_MEASURED, NOT_MEASURED)
        return nothing, nothing, said
    return (
        _lateness([appended - due_ms[number] for number, appended, _ in found]),
        _lateness([int(read) - due_ms[number] for number, _, read in found]),
        said,
    )


def _schedule(servers: str, name: str, target: str, count: int, rate: int) -> tuple[list[int], bool]:
    """Schedule so many at the rate at which they come due; when they are due, in milliseconds.

    And whether all were scheduled before: what was due by then is late by what the relay knows nothing of.
    """
    with Scheduler({"bootstrap.servers": servers, "linger.ms": 5}, name=name) as scheduler:
        first = time.time() + 3
        handles, least_ahead = [], math.inf
        for i in range(count):
            while (ahead := first + i / rate - time.time()) > 2.5:
                time.sleep(0.002)
            least_ahead = min(least_ahead, ahead)
            handles.append(scheduler.send_later(b"%d" % i, VALUE, target, ahead))
    return [round(handle.due * 1000) for handle in handles], least_ahead > STORED_WITHIN


def _lateness(late: list[int]) -> Lateness:
    late.sort()
    assert late[0] >= 0, "A record was early."
    return Lateness(_percentile(late, 0.5), _percentile(late, 0.99), late[-1])


def _percentile(late: list[int], part: float) -> float:
    """Of sorted whole milliseconds; as brokers' clocks have no finer ones, each stands for all up to the next."""
    rank = part * len(late)
    found = late[int(rank)]
    below, up_to = bisect_left(late, found), bisect_right(late, found)
    return found + (rank - below) / (up_to - below)


# (b)


def writes(report: Report) -> None:
    """How often a record is written, its delivery included: with the default delay topics, and with fitted ones."""
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


def scheduling(report: Report, servers: str, count: int, rounds: int) -> None:
    """`send_later` beside `produce`, in turns, each until all is acknowledged."""
    name, topic = f"delay-{uuid.uuid4().hex[:8]}", new_topic(servers)
    create_topics({"bootstrap.servers": servers}, name, LADDER, 1)
    settings = {"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    figures = [(_produced(settings, topic, count), _scheduled(settings, name, topic, count)) for _ in range(rounds)]
    plain, ours = (statistics.median(each) for each in zip(*figures, strict=True))
    report.add("(c) scheduling", "produce with a callback", plain, "records/s")
    report.add("(c) scheduling", "send_later", ours, "records/s")
    report.at_least("(c) send_later, × produce", ours / plain, 0.5)


def _produced(settings: dict[str, Any], topic: str, count: int) -> float:
    producer = ck.Producer({**settings, "enable.idempotence": True})
    began = time.perf_counter()
    for i in range(count):
        producer.produce(topic, VALUE, b"%d" % i, on_delivery=lambda error, message: None)
        if not i % 100:
            producer.poll(0)
    producer.flush()
    return count / (time.perf_counter() - began)


def _scheduled(settings: dict[str, Any], name: str, topic: str, count: int) -> float:
    with Scheduler(settings, name=name) as scheduler:
        began = time.perf_counter()
        for i in range(count):
            scheduler.send_later(b"%d" % i, VALUE, topic, 3600)
        scheduler.flush()
        return count / (time.perf_counter() - began)


# (d) and (e)


def flood(report: Report, servers: str, count: int) -> None:
    """How long after their due second the last of many is there."""
    name, target = f"delay-{uuid.uuid4().hex[:8]}", new_topic(servers)
    create_topics({"bootstrap.servers": servers}, name, LADDER, 4)
    with Scheduler({"bootstrap.servers": servers, "linger.ms": 5}, name=name) as scheduler:
        due = time.time() + 5 + count / 15_000
        for i in range(count):
            scheduler.send_later(b"%d" % i, VALUE, target, due - time.time())
    with Relay({"bootstrap.servers": servers}, name=name).running():
        found = Reader(servers, target).wait(count, PATIENCE)
    last = max(appended for _, appended, _ in found)
    took = report.add(f"(d) {count:,} due at once", "relay", last / 1000 - due, "s until the last is there")
    report.at_most(f"(d) {count:,} due at once: s until the last is there", took, max(1.0, count / 10_000))


def pending(report: Report, servers: str, count: int, seconds: float) -> None:
    """The peak of a relay's resident memory with so many pending, and how often it has read them."""
    name, target = f"delay-{uuid.uuid4().hex[:8]}", new_topic(servers)
    create_topics({"bootstrap.servers": servers}, name, Ladder.exponential(), 4)
    peak = {}
    for pending_count in (0, count):
        with Scheduler({"bootstrap.servers": servers, "linger.ms": 5}, name=name) as scheduler:
            for i in range(pending_count):
                scheduler.send_later(b"%d" % i, VALUE, target, 3600 + i % 864_000)
        with subprocess.Popen([*RELAY, "--name", name, "-b", servers], stderr=subprocess.DEVNULL) as relay:
            peak[pending_count] = _settled_peak(relay.pid, seconds if pending_count else 3)
            relay.terminate()
    report.add("(e) the relay with nothing pending", "relay", peak[0], "MiB at its peak")
    report.add(f"(e) the relay with {count:,} pending", "relay", peak[count], "MiB at its peak")
    report.at_most(f"(e) {count:,} pending: MiB more at the peak", peak[count] - peak[0], 256)  # its --memory


def _settled_peak(pid: int, seconds: float) -> float:
    """The peak in MiB, once it has not grown for so long: it fills its windows at once, and then waits."""
    peak, deadline = 0.0, time.monotonic() + PATIENCE
    since = time.monotonic()
    while time.monotonic() < min(since + seconds, deadline):
        time.sleep(0.2)
        now = int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
        if now > peak:
            peak, since = now, time.monotonic()
    return peak


if __name__ == "__main__":
    main(QUESTION, measure)
