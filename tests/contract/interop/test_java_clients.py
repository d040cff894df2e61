"""Services of ours and of the Java originals take over from each other, with the Java clients themselves.

The Java parallel consumer comes from a Maven repository. The Java priority client is in none: on the wire it is Kafka's
own Java client on the topics and groups of the levels, and that is used here.
"""

import base64
import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from headway import ConsumerRecord, Ordering, ParallelConsumer, Retries, fixed_backoff
from headway.broker.jars import ensure_jars, maven
from headway.broker.java import find_java
from headway.core.offsets.offset_map import OffsetMap, canonical, encode
from headway.core.offsets.trailer import Trailer, Tried
from tests.contract.conftest import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARALLEL_CONSUMER = "io.confluent.parallelconsumer:parallel-consumer-core:0.5.3.2"
FOLDER = Path(__file__).parent
COUNT = 40


@pytest.fixture(scope="module")
def java() -> Path:
    found = find_java()
    modules = subprocess.run([found, "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.compiler" not in modules:
        pytest.skip(f"{found} compiles no programs: install a JDK to try the Java clients.")
    return found


@pytest.fixture(scope="module")
def parallel_consumer_jars() -> Sequence[Path]:
    context = maven()
    try:
        roots, further = context.resolver.resolve([context.create_dependency(PARALLEL_CONSUMER)])
        needed = [each.artifact for each in [*roots, *further] if each.scope in (None, "compile", "runtime")]
        return [artifact.resolve() for artifact in needed]
    except (OSError, RuntimeError, ValueError) as error:
        pytest.skip(f"No Maven repository has {PARALLEL_CONSUMER} for us: {error}")


def run(java: Path, jars: Sequence[Path], program: str, *words: str, stdin: str = "") -> list[str]:
    """Run a Java program to its end; return the lines that it printed."""
    command = [str(java), "-cp", os.pathsep.join(map(str, jars)), str(FOLDER / f"{program}.java"), *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.splitlines()


def handled(lines: Sequence[str]) -> set[str]:
    return {line.removeprefix("handled ") for line in lines if line.startswith("handled ")}


def send(cluster: Cluster, topic: str) -> tuple[set[str], set[str]]:
    """Send records to level 0; every fourth begins with `open`. Return the values of both kinds."""
    values = [f"{'open' if number % 4 == 0 else 'plain'} {number}" for number in range(COUNT)]
    with cluster.producer() as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, f"key {number}", level=0)
    still_open = {value for value in values if value.startswith("open")}
    return still_open, set(values) - still_open


def handle_with_headway(cluster: Cluster, topic: str, group: str, wanted: int, failing: str | None) -> set[str]:
    """Handle records of the one Kafka topic in the one group until so many are done; return their values."""
    done: set[str] = set()
    config = cluster.config({"group.id": group, "auto.offset.reset": "earliest", "session.timeout.ms": 6000})

    def handle(record: ConsumerRecord) -> None:
        value = record.value.decode()
        if failing and value.startswith(failing):
            raise ValueError("This one stays open.")
        done.add(value)
        if len(done) == wanted:
            consumer.stop()

    with ParallelConsumer(
        config, ordering=Ordering.UNORDERED, retries=Retries(fixed_backoff(0.5)), hand_over_timeout=2
    ) as consumer:
        consumer.subscribe(topic)
        consumer.run(handle)
    return done


def test_headway_handles_only_what_the_java_parallel_consumer_left_open(
    kafka_cluster: Cluster, java: Path, parallel_consumer_jars: Sequence[Path]
) -> None:
    topic = kafka_cluster.topic()
    still_open, plain = send(kafka_cluster, topic)
    words = [kafka_cluster.bootstrap_servers, f"{topic}-0", topic, str(len(plain)), "open"]
    assert handled(run(java, parallel_consumer_jars, "ParallelConsumerMember", *words)) == plain
    assert handle_with_headway(kafka_cluster, f"{topic}-0", topic, len(still_open), failing=None) == still_open


def test_the_java_parallel_consumer_handles_only_what_headway_left_open(
    kafka_cluster: Cluster, java: Path, parallel_consumer_jars: Sequence[Path]
) -> None:
    topic = kafka_cluster.topic()
    still_open, plain = send(kafka_cluster, topic)
    assert handle_with_headway(kafka_cluster, f"{topic}-0", topic, len(plain), failing="open") == plain
    words = [kafka_cluster.bootstrap_servers, f"{topic}-0", topic, str(len(still_open)), ""]
    assert handled(run(java, parallel_consumer_jars, "ParallelConsumerMember", *words)) == still_open


def texts_of_all_kinds() -> list[tuple[OffsetMap, str]]:
    """Maps with trailers: bitsets, compressed run lengths and compressed bitsets, and attempts without a map."""
    numbers = random.Random(44)
    found = [
        (OffsetMap(offset), encode(OffsetMap(offset), Trailer(offset, b"abcdef", {offset: Tried(3)})))
        for offset in (0, 7)
    ]
    for offset in (0, 10**12):
        for longest, runs in ((1, 2), (3, 6), (20, 300), (2, 4000), (300, 8), (5000, 4), (40_000, 2)):
            offset_map = canonical(offset, [numbers.randint(1, longest) for _ in range(runs)])
            for log in (b"", b"\xff\0\0abc"):
                for count in (0, 3, 200):
                    tried = {offset + numbers.randrange(5000): Tried(numbers.randint(1, 300), 1) for _ in range(count)}
                    found.append((offset_map, encode(offset_map, Trailer(offset, log, tried))))
    return found


def test_the_java_reader_reads_past_the_trailer_of_each_kind_of_map(
    java: Path, parallel_consumer_jars: Sequence[Path]
) -> None:
    texts = texts_of_all_kinds()
    assert {base64.b64decode(text)[:1] for _, text in texts} >= {b"l", b"a", b"J", b"p"}
    lines = run(
        java,
        parallel_consumer_jars,
        "OffsetMaps",
        stdin="".join(f"{offset_map.offset} {text}\n" for offset_map, text in texts),
    )
    assert lines == [
        f"{offset_map.end - 1} {[offset for run in offset_map.incomplete for offset in run]}" for offset_map, _ in texts
    ]


def test_keys_have_the_partitions_that_the_java_priority_client_gives_them(kafka_cluster: Cluster, java: Path) -> None:
    topic = kafka_cluster.topic()
    jars = ensure_jars()
    lines = run(java, jars, "PlainMember", "send", kafka_cluster.bootstrap_servers, f"{topic}-2", "none", str(COUNT))
    java_partitions = [int(line.split()[0]) for line in lines if line[0].isdigit()]
    with kafka_cluster.producer() as producer:
        sent = [producer.send(topic, b"ours", f"key {number}", level=2) for number in range(COUNT)]
        assert [each.result(30).partition for each in sent] == java_partitions


def test_a_priority_consumer_goes_on_where_the_java_priority_client_stopped(kafka_cluster: Cluster, java: Path) -> None:
    topic = kafka_cluster.topic()
    jars = ensure_jars()
    servers = kafka_cluster.bootstrap_servers
    run(java, jars, "PlainMember", "send", servers, f"{topic}-2", "none", str(COUNT))
    first = handled(run(java, jars, "PlainMember", "read", servers, f"{topic}-2", f"{topic}-2", "15"))
    second: set[str] = set()
    with kafka_cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        while len(second) < COUNT - 15:
            second |= {record.value.decode() for record in consumer.poll(5)}
    assert first | second == {f"java {number}" for number in range(COUNT)}
    assert not first & second
