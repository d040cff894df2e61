"""What does a member cost with a group for each level, and with one group for all?

Each member is a process of its own with one `PriorityConsumer`. It says how long it took from `subscribe` to the first
record of the highest level, what it holds then (connections, threads, memory beyond that of the imports), and the part
of a core that it takes while nothing comes. Then a second member joins, and the first says how long it took until it
had given up half of its partitions of every level. The two ways take turns.
"""

import json
import resource
import subprocess
import sys
import time
import uuid
from pathlib import Path
from statistics import median
from typing import Any

import confluent_kafka as ck
from _harness import Options, Report, main
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import PriorityConsumer

QUESTION = "What does a member cost with a group for each level, and with one group for all?"
PARTITIONS = 4
IDLE_S = 4.0
UNITS = {
    "first record": "ms",
    "connections": "",
    "threads": "",
    "memory": "MB",
    "idle": "% of a core",
    "rebalance": "ms",
}


def config_of(servers: str, topic: str, levels: int, *, per_level: bool) -> dict[str, Any]:
    """A member's settings; with the default timings."""
    return {
        "bootstrap.servers": servers,
        "group.id": topic,
        "levels": levels,
        "group.per.level": per_level,
        "max.poll.records": 2000,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }


def connections() -> int:
    """The established TCP connections of this process."""
    own = {link.readlink().name for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and link.exists()}
    inodes = {name.removeprefix("socket:[").removesuffix("]") for name in own if name.startswith("socket:[")}
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    return sum(row[9] in inodes and row[3] == "01" for row in rows)


def status(name: str) -> int:
    """A number of /proc/self/status."""
    found = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) for words in found if words[0] == f"{name}:")


def cpu() -> float:
    """The processor time of this process in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def be_member(servers: str, topic: str, levels: int, per_level: bool) -> None:
    """Measure as the first member; runs in a process of its own, and tells each figure on stdout."""
    before = status("VmRSS")
    share = PARTITIONS // 2

    def shared(consumer: PriorityConsumer) -> bool:
        counts = [sum(each.level == level for each in consumer.assignment()) for level in range(levels)]
        return counts == [share] * levels

    began = time.monotonic()
    with PriorityConsumer(config_of(servers, topic, levels, per_level=per_level)) as consumer:
        consumer.subscribe(topic)
        while not any(record.level == levels - 1 for record in consumer.poll(0.1)):
            pass
        figures = {"first record": 1000 * (time.monotonic() - began)}
        until = time.monotonic() + 2
        while time.monotonic() < until:
            consumer.poll(0.1)
        figures |= {"connections": connections(), "threads": status("Threads")}
        figures["memory"] = (status("VmRSS") - before) / 1024
        used, since = cpu(), time.monotonic()
        while time.monotonic() < since + IDLE_S:
            consumer.poll(1.0)
        figures["idle"] = 100 * (cpu() - used) / (time.monotonic() - since)
        print("ready", flush=True)
        began = time.monotonic()
        while not shared(consumer) and time.monotonic() < began + 60:
            consumer.poll(0.05)
        figures["rebalance"] = 1000 * (time.monotonic() - began)
        print(json.dumps(figures), flush=True)


def measure_member(servers: str, levels: int, *, per_level: bool) -> dict[str, float]:
    """Run a member of a new group in a process of its own, and let a second one join it."""
    topic = f"groups-{uuid.uuid4().hex[:8]}"
    names = [f"{topic}-{level}" for level in range(levels)]
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        created.result(30)
    producer = ck.Producer({"bootstrap.servers": servers, "log_level": 0})
    for name in names:
        producer.produce(name, b"first", partition=0)
    producer.flush(20)
    command = [sys.executable, __file__, "member", servers, topic, str(levels), str(int(per_level))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as member:
        assert member.stdout
        assert member.stdout.readline() == "ready\n"
        with PriorityConsumer(config_of(servers, topic, levels, per_level=per_level)) as second:
            second.subscribe(topic)
            while member.poll() is None:
                second.poll(0.05)
        found: dict[str, float] = json.loads(member.stdout.read())
    return found


def measure(report: Report, options: Options) -> None:
    """Both ways for several numbers of levels."""
    counts, rounds = ((3,), 1) if options.quick else ((1, 3, 5, 10), 2)
    with options.broker() as servers:
        measure_member(servers, 1, per_level=True)  # a fresh broker makes its topic of commits
        for levels in counts:
            figures: dict[str, list[dict[str, float]]] = {"a group per level": [], "one group": []}
            for _ in range(rounds):
                for system, of_system in figures.items():
                    of_system.append(measure_member(servers, levels, per_level=system != "one group"))
            for what, unit in UNITS.items():
                for system, of_system in figures.items():
                    report.add(f"{levels} levels: {what}", system, median(each[what] for each in of_system), unit)


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        be_member(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "1")
    else:
        main(QUESTION, measure)
