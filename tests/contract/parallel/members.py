"""What the tests of the parallel consumer share: plain topics, and members that note what they handle."""

import asyncio
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import ConsumerRecord, Context, Ordering, ParallelConsumer
from headway.core.offsets.offset_map import OffsetMap, decode_map
from headway.errors import KafkaError
from headway.kafka.binding import capi
from tests.contract.conftest import Cluster

Commits = dict[int, tuple[int, bytes]]
"""Of each partition the committed offset and its exact metadata."""

Settings = dict[str, Any]

OFTEN: Settings = {"auto.commit.interval.ms": 100}
COOPERATIVE: Settings = {"partition.assignment.strategy": "cooperative-sticky"}
CONSUMER_PROTOCOL: Settings = {"group.protocol": "consumer", "heartbeat.interval.ms": None, "session.timeout.ms": None}


def plain_topic(cluster: Cluster) -> str:
    """A new topic without levels."""
    topic = f"jobs-{uuid.uuid4().hex[:8]}"
    cluster.create_topics([topic])
    return topic


def topic_of(cluster: Cluster, partitions: int, **settings: str) -> str:
    """A new topic without levels that has these settings, dots as underscores."""
    topic = f"jobs-{uuid.uuid4().hex[:8]}"
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin = AdminClient(cluster.config({"log_level": 0}))
    [created] = admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values()
    created.result(30)
    return topic


def send(cluster: Cluster, topic: str, records: Iterable[tuple[str | None, str]], partition: int = -1) -> None:
    """Store records of key and value."""
    producer = cluster.plain_producer()
    for key, value in records:
        while not _queued(producer, topic, value, key, partition):
            producer.poll(0.1)
    assert producer.flush(30) == 0


def _queued(producer: ck.Producer, topic: str, value: str, key: str | None, partition: int) -> bool:
    try:
        producer.produce(topic, value, key, partition)
    except BufferError:
        return False
    return True


def write_transactions(cluster: Cluster, topic: str, fates: Iterable[str], size: int = 50) -> None:
    """Store transactions of as many records each, one after the other, and end them so."""
    with closing(ck.Producer(cluster.config({"log_level": 0, "transactional.id": topic, "linger.ms": 5}))) as producer:
        producer.init_transactions(30)
        for fate in fates:
            producer.begin_transaction()
            for i in range(size):
                producer.produce(topic, fate, f"key-{i}", 0)
            producer.flush(30)  # one that is aborted is in the log nevertheless
            (producer.commit_transaction if fate == "commit" else producer.abort_transaction)(30)


@contextmanager
def client_of(cluster: Cluster, group: str, **settings: Any) -> Iterator[ck.Consumer]:
    """Kafka's plain client, to look at logs and at a group's commits."""
    with closing(ck.Consumer({"log_level": 0, **cluster.config({"group.id": group} | settings)})) as client:
        yield client


def committed(cluster: Cluster, topic: str) -> Commits:
    """What the group that is named like its topic has committed."""
    with client_of(cluster, topic) as client:
        partitions = [(topic, partition) for partition in client.list_topics(topic, 30).topics[topic].partitions]
        answers = _answers(client, partitions, time.monotonic() + 30)
    return {partition: answer for (_, partition), answer in answers.items() if answer}


def _answers(
    client: ck.Consumer, partitions: list[capi.Partition], deadline: float
) -> dict[capi.Partition, tuple[int, bytes] | None]:
    while True:
        try:
            return capi.committed(client, partitions, 30)
        except KafkaError:  # a broker that has just started has no coordinator yet
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)


def maps_of(commits: Commits) -> dict[int, OffsetMap]:
    """The offset maps of commits."""
    return {partition: decode_map(metadata, offset) for partition, (offset, metadata) in commits.items()}


def consumer(cluster: Cluster, topic: str, options: dict[str, Any] | None = None, **settings: Any) -> ParallelConsumer:
    """A consumer whose group is named like its topic; a setting of None is left out."""
    parallel = ParallelConsumer(cluster.config(settings_of(topic, **settings)), **(options or {}))
    parallel.subscribe(topic)
    return parallel


def settings_of(topic: str, **settings: Any) -> dict[str, Any]:
    """The settings of a consumer whose group is named like its topic; those that are None are left out."""
    config = {
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 6000,
        "auto.commit.interval.ms": 600_000,
    } | settings
    return {key: value for key, value in config.items() if value is not None}


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
        self._thread = threading.Thread(target=self._run, daemon=True)  # a test that fails ends all the same
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


def log_ends(cluster: Cluster, topic: str) -> dict[int, int]:
    """The end of each partition's log that is not empty."""
    with client_of(cluster, "nobody") as client:
        partitions = client.list_topics(topic, 30).topics[topic].partitions
        bounds = {each: client.get_watermark_offsets(ck.TopicPartition(topic, each), 30) for each in partitions}
    return {partition: end for partition, (_, end) in bounds.items() if end}


def handled_until_all_is_committed(
    cluster: Cluster, topic: str, options: dict[str, Any] | None = None, **settings: Any
) -> list[tuple[int, int]]:
    """Where the records were that a new member handled until its group had committed all there is."""
    handled: list[tuple[int, int]] = []
    ends = {partition: (end, b"") for partition, end in log_ends(cluster, topic).items()}
    member = Member(
        consumer(cluster, topic, options, **OFTEN | settings),
        lambda record, context: handled.append((record.partition, record.offset)),
    )
    try:
        wait_for(lambda: committed(cluster, topic) == ends)
    finally:
        member.stop()
    return handled


class Gate:
    """What coroutines of one event loop wait for; any thread may open it."""

    def __init__(self) -> None:
        self.waiting = 0  # or have waited
        self._opened = False
        self._event: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def wait(self) -> None:
        """Until it is open."""
        self.waiting += 1
        self._event = self._event or asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self._opened:  # looked at when `open` would find the loop
            await self._event.wait()

    def open(self) -> None:
        """For all who wait, and all who come."""
        self._opened = True
        if self._loop and self._event:
            self._loop.call_soon_threadsafe(self._event.set)


class Note(NamedTuple):
    """That a process began, or ended, to handle a record."""

    process: int
    what: str
    partition: int
    offset: int
    key: str

    @property
    def place(self) -> tuple[int, int]:
        """Where the record is."""
        return self.partition, self.offset


class Notes:
    """What the processes of a group have noted, in the order in which it happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[Note] = []
        self._file = path.open("a+")
        self._file.seek(0)
        self._begun = ""  # a line of which more is to come
        self._reading = threading.Lock()

    def read(self) -> list[Note]:
        """All notes up to now."""
        with self._reading:
            *lines, self._begun = (self._begun + self._file.read()).split("\n")
            for line in lines:
                process, what, partition, offset, key = line.split()
                self.all.append(Note(int(process), what, int(partition), int(offset), key))
        return self.all

    def of(self, process: int, what: str = "ended") -> list[Note]:
        """Those of one process."""
        return [note for note in self.read() if note.process == process and note.what == what]

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class Process:
    """A member in a process of its own; see `parallel_program.py`."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        notes: Path,
        settings: dict[str, Any],
        *,
        max_concurrency: int = 100,
        pause: float = 0,
        print_every: int = 1_000_000_000,
    ) -> None:
        asked = {
            "config": cluster.config(settings_of(topic, **settings)),
            "options": {"max_concurrency": max_concurrency},
            "topic": topic,
            "notes": str(notes),
            "pause": pause,
            "print_every": print_every,
        }
        program = str(Path(__file__).with_name("member_program.py"))
        command = [sys.executable, program, json.dumps(asked)]
        self._popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.id = self._popen.pid

    def stop(self) -> None:
        """Ask it to end, and wait until it has, in order."""
        self._popen.terminate()
        assert self._popen.wait(60) == 0

    def kill(self) -> None:
        """End it as a power failure would; nothing happens if it has ended."""
        self._popen.kill()
        self._popen.wait(30)
        assert self._popen.stdout
        self._popen.stdout.close()

    def measured(self) -> tuple[int, int]:
        """How many records it has handled and the most bytes it had, when it next says so."""
        assert self._popen.stdout
        count, size = self._popen.stdout.readline().split()
        return int(count), int(size)


@contextmanager
def processes() -> Iterator[list[Process]]:
    """A list for processes, which are killed in the end."""
    started: list[Process] = []
    try:
        yield started
    finally:
        for each in started:
            each.kill()


ORDERINGS = list(Ordering)


def read(cluster: Cluster, topic: str, count: int) -> list[ck.Message]:
    """So many records of a topic, from its beginning."""
    client = ck.Consumer(
        cluster.config({"log_level": 0, "group.id": f"reader-of-{topic}", "auto.offset.reset": "earliest"})
    )
    client.subscribe([topic])
    messages: list[ck.Message] = []
    while len(messages) < count:
        messages += client.consume(count - len(messages), 10)
    client.close()
    return messages
