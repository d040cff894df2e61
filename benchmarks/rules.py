"""What do a thousand rules cost a record, and how soon does a pause hold on all members?

The first figures are the processor time of the gate alone, in turns with a gate without rules. The rules are for keys,
tenants and headers, as most rules are; records match none of them, or one. The last figures are from four members, each
in its own process, with a real broker: from the call that sets a rule for all records to the last start of a record on
any member.
"""

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any

from _harness import Options, Report, main, percentile

from headway import ParallelConsumer, Producer
from headway.core.engine.attempt import Attempt
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.core.rules.rule import Hold, LimitConcurrency, Rule
from headway.core.rules.rule_book import RuleBook
from headway.execution.gates.rules_gate import RulesGate
from headway.kafka.admin import Admin
from headway.records.record_types import TopicPartition
from headway.rules import Rules

QUESTION = "What do a thousand rules cost a record, and how soon does a pause hold on all members?"
RULES = 1000
RECORDS = 20_000
MEMBERS = 4
RECORDS_FOR_EACH_PAUSE = 5_000
PARTITION = TopicPartition("orders", partition=0)


def book_of(*kinds: str) -> RuleBook:
    """A thousand rules, divided among selectors of these forms."""
    return RuleBook(
        Rule(f"r{number}", "billing", Hold(), kinds[number % len(kinds)].format(number)) for number in range(RULES)
    )


def attempts(matching: bool) -> list[Attempt[Any]]:
    """Running attempts at records that one rule is for, or none."""
    engine = Engine[Any](Ordering.UNORDERED, most_bytes=2**40)
    engine.assign(PARTITION, OffsetMap(0))
    prefix = "k" if matching else "other"
    engine.receive(
        PARTITION,
        [
            SimpleNamespace(
                offset=number,
                raw_key=f"{prefix}{number % RULES}".encode(),
                headers=[("trace", b"1"), ("tenant", f"{prefix}{number % RULES}".encode())],
                timestamp=0,
            )
            for number in range(RECORDS)
        ],
        0.0,
    )
    return engine.take(RECORDS, 0.0)


def seconds_per_record(book: RuleBook, running: Sequence[Attempt[Any]]) -> float:
    """The processor time for which a gate with these rules admits one record."""
    gate = RulesGate(Engine(Ordering.UNORDERED), has_dead_letters=True)
    gate.use(book, 0.0)
    jobs = [(attempt,) for attempt in running]
    began = time.process_time()
    for job in jobs:
        gate.admit(job, 0.0)
        gate.started(job, 1, 0.0)
    return (time.process_time() - began) / len(jobs)


def measure_look_ups(report: Report, rounds: int) -> None:
    """The medians of several rounds."""
    cases: dict[str, tuple[RuleBook, bool]] = {
        "no rule": (RuleBook(), False),
        "for keys, none matches": (book_of("key = k{}"), False),
        "for keys, one matches": (limits_of("key = k{}"), True),
        "for headers, none matches": (book_of("header.tenant = k{}"), False),
        "for keys, tenants and headers": (
            book_of("key = k{}", "tenant = k{}", "header.tenant = k{}", "header.trace = k{} and key like 'k%'"),
            False,
        ),
    }
    measured: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (book, matching) in cases.items():
            measured[name].append(1e6 * seconds_per_record(book, attempts(matching)))
    none = median(measured["no rule"])
    for name, times in measured.items():
        report.add(name, "1,000 rules" if name != "no rule" else "the gate alone", median(times), "µs a record")
    most = max(median(times) for name, times in measured.items() if name != "for keys, one matches")
    report.at_most("1,000 rules that do not match, µs a record more than none", most - none, 1.0)


def limits_of(where: str) -> RuleBook:
    """A thousand rules that limit what matches, but let it start."""
    return RuleBook(
        Rule(f"r{number}", "billing", LimitConcurrency(10**9), where.format(number)) for number in range(RULES)
    )


def be_member(servers: str, topic: str) -> None:
    """Run a member that says on each line of its input when it last started a record, and whether a rule holds some."""
    started = [0.0]

    def handle(record: Any, context: Any) -> None:
        started[0] = time.time()
        time.sleep(0.001)

    config = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
    with ParallelConsumer(config, steered=True, ordering="unordered", max_concurrency=4, rate_limit=2000) as consumer:
        consumer.subscribe(topic)
        threading.Thread(target=consumer.run, args=(handle,), daemon=True).start()
        for _ in sys.stdin:
            print(json.dumps([started[0], consumer.metrics().held > 0]), flush=True)


class Members:
    """The members of one group, each in its own process."""

    def __init__(self, servers: str, topic: str) -> None:
        command = [sys.executable, __file__, "member", servers, topic]
        self._all = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(MEMBERS)
        ]

    def ask(self) -> list[tuple[float, bool]]:
        """When each member last started a record, and whether a rule holds records there."""
        for each in self._all:
            assert each.stdin
            each.stdin.write("\n")
            each.stdin.flush()
        return [json.loads(each.stdout.readline()) for each in self._all if each.stdout]

    def close(self) -> None:
        """End all of them."""
        for each in self._all:
            each.kill()
            each.communicate()


def measure_pauses(report: Report, servers: str, pauses: int) -> None:
    """From the call that sets a rule to the last start of a record on any member."""
    topic = f"jobs-{uuid.uuid4().hex[:8]}"
    config: dict[str, Any] = {"bootstrap.servers": servers}
    Admin(config).create([topic], 2 * MEMBERS)
    with Producer(config) as producer:
        for number in range(RECORDS_FOR_EACH_PAUSE * (pauses + 5)):
            producer.send(topic, b"x", str(number))
    members = Members(servers, topic)
    try:
        with Rules(config) as rules:
            times = [pause(rules, topic, members) for _ in range(pauses)]
    finally:
        members.close()
    report.add("a pause", f"{MEMBERS} members", median(times), "s, median")
    report.add("a pause", f"{MEMBERS} members", percentile(times, 99), "s, p99")
    report.at_most(f"a pause of {MEMBERS} members, p99 in s", percentile(times, 99), 1.0)


def pause(rules: Rules, topic: str, members: Members) -> float:
    """Set a rule while all members start records, and end it when all hold records."""
    before = time.time()
    wait(lambda: all(at > before for at, _ in members.ask()))
    set_at = time.time()
    rules.set(Rule("pause", topic, Hold()))
    wait(lambda: all(held for _, held in members.ask()))
    time.sleep(0.2)  # a member that was late would start records in this time
    last = max(at for at, _ in members.ask())
    rules.end(topic, "pause")
    return max(0.0, last - set_at)


def wait(condition: Callable[[], bool]) -> None:
    """Until something is so."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def measure(report: Report, options: Options) -> None:
    """The look-ups, and then the pauses."""
    measure_look_ups(report, 3 if options.quick else 9)
    with options.broker() as servers:
        measure_pauses(report, servers, 5 if options.quick else 50)


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        be_member(sys.argv[2], sys.argv[3])
    else:
        main(QUESTION, measure)
