"""How fast does the page of a large installation answer, and what does it cost the brokers and its own machine?

`headway dashboard` runs in a process of its own, which gets as long as it needs for the first reading of the letters.
Five groups have commits with offset maps for 300 partitions each, a member's metrics have 100 tenants, and a
dead-letter topic has a million letters of three causes.
"""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median
from urllib.request import Request, urlopen

import confluent_kafka as ck
import psutil
from _harness import Options, Report, main
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway.core.offsets.offset_map import OffsetMap, encode

QUESTION = "How fast does the page of a large installation answer?"
LEVELS = 5
TENANTS = 100
WATCHED_FOR = 60.0  # seconds
MAP = OffsetMap(20, (1, 10, 2, 30, 5, 15))
FAILURES = ("shop.Declined", "builtins.TimeoutError", "shop.NoAddress")
CASES = {
    "overview": "/",
    "level with its partitions": "/queue?topic=orders&group=billing&level=4",
    "partition with its map": "/partition?topic=orders&group=billing&level=4&partition=7",
    "members and tenants": "/members",
    "causes of dead letters": "/dead",
    "newest letters": "/dead/letters?topic=orders-dead",
    "rules": "/rules",
    "curves": "/curves.json?topic=orders&group=billing",
}


def create(servers: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)


def fill(servers: str, partitions: int, letters: int) -> None:
    """Create the topics, their records, the commits of the groups, and the letters."""
    with closing(ck.Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000})) as producer:
        for level in range(LEVELS):
            create(servers, f"orders-{level}", partitions)
            for number in range(partitions * 100):
                producer.produce(f"orders-{level}", b"an order", f"customer {number % 50}", number % partitions)
        create(servers, "orders-dead", 3)
        for number in range(letters):
            failure = {"exception": FAILURES[number % 3], "message": "no", "topic": "orders-4", "partition": "7"}
            headers: dict[str, str | bytes | None] = {f"headway.error.{name}": text for name, text in failure.items()}
            while True:
                try:
                    producer.produce("orders-dead", b"an order", partition=number % 3, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(300)
    for level in range(LEVELS):
        config = {"bootstrap.servers": servers, "group.id": f"billing-{level}", "enable.auto.commit": False}
        with closing(ck.Consumer(config)) as consumer:
            text = encode(MAP)
            places = [ck.TopicPartition(f"orders-{level}", number, MAP.offset, text) for number in range(partitions)]
            consumer.commit(offsets=places, asynchronous=False)


@contextmanager
def metrics() -> Iterator[str]:
    """Serve the metrics of a member with many tenants. Yields the address."""
    lines = ['headway_handler_slots{group="billing",handler="bill"} 20']
    name = "headway_tenant_handler_seconds_total"
    lines += [f'{name}{{group="billing",tenant="shop {number}"}} {number}' for number in range(TENANTS)]
    text = "\n".join(lines).encode() + b"\n"

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()


@contextmanager
def dashboard(servers: str, member: str) -> Iterator[tuple[psutil.Process, str]]:
    """Run the dashboard. Yields its process and its address."""
    command = [sys.executable, "-m", "headway", "dashboard", "--port", "0", "-b", servers, "--metrics", member]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        line = process.stderr.readline()
        found = re.search(r"http://\S+?:\d+", line)
        assert found, line
        try:
            yield psutil.Process(process.pid), found[0]
        finally:
            process.terminate()


def page(address: str) -> str:
    request = Request(address, headers={"Accept": "text/html"})  # noqa: S310 - the address is our own
    with urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
        text: str = answer.read().decode()
        return text


def answers(address: str, times: int) -> Sequence[float]:
    """Return how long each request for a page took."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        page(address)
        found.append(time.perf_counter() - began)
    return found


def measure(report: Report, options: Options) -> None:
    partitions, letters, watched = (30, 20_000, 15.0) if options.quick else (300, 1_000_000, WATCHED_FOR)
    with options.broker() as servers:
        fill(servers, partitions, letters)
        with metrics() as member, dashboard(servers, member) as (process, address):
            began = time.perf_counter()
            while "orders" not in page(address + "/"):
                time.sleep(0.1)
            report.add("first page with figures", "dashboard", time.perf_counter() - began, "s")
            while f"{letters:,}" not in page(address + "/dead"):
                time.sleep(0.5)
            cpu, began = sum(process.cpu_times()[:2]), time.perf_counter()
            time.sleep(watched)
            used = (sum(process.cpu_times()[:2]) - cpu) / (time.perf_counter() - began)
            for case, path in CASES.items():
                report.add(case, "dashboard", 1000 * median(answers(address + path, 10)), "ms")
            requests = re.search(r"with ([\d.]+) requests to Kafka a second", page(address + "/"))
            assert requests
            report.add("requests to Kafka", "dashboard", float(requests[1]), "per second")
            report.add("processor time while nobody looks", "dashboard", 100 * used, "% of a core")
            report.add("memory", "dashboard", process.memory_info().rss / 1e6, "MB")


if __name__ == "__main__":
    main(QUESTION, measure)
