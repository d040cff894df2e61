"""A random walk over the public calls of parallel consumers, and the ledger of what must come of it.

A step is one call of one member of a group: records are sent, handlers that hang are let go, and members are paused,
resumed, sought, asked, stopped and started. What each record does in the handler stands in its value. So the ledger
knows what has to become of it, whoever handles it, and how often.
"""

import math
import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import (
    Batches,
    CircuitBreaker,
    ParallelConsumer,
    Producer,
    Retries,
    TopicPartition,
)
from headway.core.levels.naming import level_topic
from headway.core.retry import fixed_backoff
from headway.errors import ConfigError
from headway.kafka.producer.delivery import DeliveryFuture
from headway.records.record_types import RecordMetadata
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import committed, log_ends, settings_of
from tests.contract.parallel.walk_handlers import LONGEST_HANG, Note, Plan

MOST_ATTEMPTS = 3
PARTITIONS = 3
CLOSES_WITHIN = 20.0  # seconds
ENDS_WITHIN = 120.0  # seconds, on a busy machine
_RUNNING_AT_STOP = LONGEST_HANG + 1.0  # seconds before a stop without drain in which an attempt may have begun

# The words of a value: what becomes of its attempts. Of those that fail for good there are few, as circuits open.
_PLANS = {
    "ok": 40,
    "hangs": 6,
    "fails ok": 6,
    "retriable fails ok": 4,
    "retriable hangs": 2,
    "fails": 2,
    "fatal": 2,
}


class Choices(NamedTuple):
    """The options of all members of a walk."""

    levels: int
    batches: Batches | None
    in_loop: bool
    options: dict[str, Any]
    settings: dict[str, Any]

    @property
    def is_transactional(self) -> bool:
        """True if outputs and offsets are one."""
        return bool(self.options["commit_mode"] == "transactional")


def choices(chance: random.Random) -> Choices:
    """Choose options: each is in use in some walks, and with each other."""
    levels = chance.choice([0, 0, 2])
    batches = chance.choice([None, None, Batches(5), Batches(20, linger=0.05, min_size=3)])
    executor = chance.choice(["thread", "thread", "async", "process"])
    in_loop = executor == "async" and batches is None
    options: dict[str, Any] = {
        "ordering": chance.choice(["key", "key", "key_if_any", "partition", "unordered"]),
        "max_concurrency": chance.choice([1, 4, 16]),
        "commit_mode": chance.choice(["async", "sync", "transactional", "transactional"]),
        "retries": Retries(fixed_backoff(0.05), max_attempts=MOST_ATTEMPTS),
        "on_expired": chance.choice(["drop", "dead_letter"]),
        "hand_over_timeout": 10.0,
    }
    if executor == "process":
        options |= {"executor": "process", "processes": 2}
    if chance.random() < 0.5:
        options |= {"tenant": "header:tenant", "tenant_weights": {"a": 3.0}}
        if chance.random() < 0.5:
            options["tenant_rate_limit"] = 200
    if chance.random() < 0.3:
        options["rate_limit"] = 300
    if chance.random() < 0.3:
        options["key_rate_limit"] = 50
    if chance.random() < 0.3:
        options["circuit_breaker"] = CircuitBreaker(failing=0.9, least=5, window=2.0, longest=1.0)
    if chance.random() < 0.3:
        options["expires_after"] = 3600.0
    if chance.random() < 0.3:
        options["adaptive"] = True
    if chance.random() < 0.3:
        options["time_limit"] = 30.0
    settings: dict[str, Any] = {"auto.commit.interval.ms": chance.choice([50, 100, 1000])}
    if levels:
        settings["levels"] = levels
    if chance.random() < 0.4:
        settings["partition.assignment.strategy"] = "cooperative-sticky"
    return Choices(levels, batches, in_loop, options, settings)


class Sent(NamedTuple):
    """A record that the walk has sent."""

    key: str | None
    words: list[str]
    expired: bool
    future: DeliveryFuture


class WalkMember:
    """A member of the group, with a thread for its run."""

    def __init__(self, cluster: Cluster, topic: str, chosen: Choices, plan: Plan) -> None:
        settings = cluster.config(settings_of(topic, **chosen.settings))
        self.consumer = ParallelConsumer(settings, dead_letter_topic=f"{topic}-dead", **chosen.options)
        self.consumer.subscribe(topic)
        self.done = 0
        self.error: BaseException | None = None
        self._chosen = chosen
        self._plan = plan
        self._thread = threading.Thread(target=self._run, daemon=True)  # a test that fails ends all the same
        self._thread.start()

    def _run(self) -> None:
        batches, plan = self._chosen.batches, self._plan
        handler: Any = plan.handle_batch if batches else plan.handle_in_loop if self._chosen.in_loop else plan.handle
        try:
            if self._chosen.is_transactional:
                self.consumer.run_and_produce(handler, batches=batches)
            elif batches:
                self.consumer.run(handler, batches=batches)
            else:
                self.consumer.run(handler)
        except BaseException as error:
            self.error = error

    def look(self, most: int) -> None:
        """Check what it says of itself."""
        if self.error:
            raise self.error
        figures = self.consumer.metrics()
        assert 0 <= figures.running <= most, figures
        assert 0 <= figures.ready <= figures.remaining, figures
        assert figures.dead_letters <= figures.done >= self.done, figures
        assert figures.refused is None, figures
        assert figures.deleted_unread == 0, figures
        self.done = figures.done
        assert all(each.partition < PARTITIONS for each in self.consumer.assignment() | self.consumer.paused())

    def stop(self, *, drain: bool) -> None:
        """Close it; raises what its run raised."""
        began = time.monotonic()
        self.consumer.close(drain=drain)
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error:
            raise self.error
        assert time.monotonic() - began < CLOSES_WITHIN


class Log:
    """The records of a topic of one partition, as a reader of whole transactions sees them."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        settings = {"group.id": "nobody", "isolation.level": "read_committed", "enable.partition.eof": True}
        self._settings = cluster.config({"enable.auto.commit": False} | settings)
        self._topic = topic
        self.attempts: dict[int, int] = {}

    def read(self) -> Counter[int]:
        """Return how often each record's number is there; `attempts` has what the last letter of each says."""
        counts = Counter[int]()
        with closing(ck.Consumer({"log_level": 0} | self._settings)) as client:
            client.assign([ck.TopicPartition(self._topic, 0, 0)])
            is_whole = False
            while not is_whole:
                for message in client.consume(1000, 0.05):
                    if error := message.error():
                        assert error.code() == ck.KafkaError._PARTITION_EOF, error
                        is_whole = True
                        continue
                    number = int((message.value() or b"").split()[0])
                    counts[number] += 1
                    headers: dict[str, Any] = dict(message.headers() or [])
                    self.attempts[number] = int(headers.get("headway.error.attempts", 0))
        return counts


class Walk:
    """One walk: its topics, its members and its ledger."""

    def __init__(self, cluster: Cluster, seed: int, folder: Path) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self.chosen = choices(self._chance)
        self._topic = f"walk-{uuid.uuid4().hex[:8]}"
        levels = self.chosen.levels
        self._logs = [level_topic(self._topic, level) for level in range(levels)] or [self._topic]
        partitions = dict.fromkeys(self._logs, PARTITIONS) | {f"{self._topic}-dead": 1, f"{self._topic}-out": 1}
        admin = AdminClient(cluster.config({"log_level": 0}))
        created = admin.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()])
        for each in created.values():
            each.result(30)
        self._letters, self._outputs = Log(cluster, f"{self._topic}-dead"), Log(cluster, f"{self._topic}-out")
        self._plan = Plan(folder, f"{self._topic}-out" if self.chosen.is_transactional else None)
        settings = cluster.config({"linger.ms": 1, "log_level": 0})
        # With idempotence, a record that a new partition refuses can end in doubt, but the ledger must be certain.
        sends = settings | {"enable.idempotence": False}
        self._producer: Any = Producer(sends | {"levels": levels}) if levels else Producer(sends)
        self._sent: list[Sent] = []
        self._seeks: list[tuple[int, int, int]] = []  # level, partition and offset
        self._cuts: list[float] = []  # the times of stops without drain
        self._members = [self._start()]
        self.steps: list[str] = []

    def _start(self) -> WalkMember:
        return WalkMember(self._cluster, self._topic, self.chosen, self._plan)

    def walk(self, steps: int) -> None:
        """Make this many steps."""
        calls: dict[Callable[[WalkMember, random.Random], None], int] = {
            self._send: 40,
            self._let_go: 10,
            self._pause: 6,
            self._resume: 10,
            self._seek: 2,
            self._commit: 5,
            self._look: 20,
            self._restart: 2,
            self._join_or_leave: 2,
        }
        for _ in range(steps):
            [call] = self._chance.choices(list(calls), list(calls.values()))
            own = random.Random(self._chance.random())  # so that what a step finds does not change the next ones
            member = self._members[own.randrange(len(self._members))]
            self.steps.append(call.__name__)
            call(member, own)
            threading.Event().wait(own.expovariate(200))

    # Steps

    def _send(self, member: WalkMember, chance: random.Random) -> None:
        for _ in range(chance.randrange(1, 8)):
            key = chance.choice([None, *"abcdef", *"abcdef"])
            [words] = chance.choices(list(_PLANS), list(_PLANS.values()))
            level = {"level": chance.randrange(self.chosen.levels)} if self.chosen.levels else {}
            expired = chance.random() < 0.04
            expires = int((time.time() + (-1 if expired else 3600)) * 1000)
            headers = [("tenant", chance.choice("abc").encode())] if chance.random() < 0.8 else []
            if expired or chance.random() < 0.2:
                headers.append(("headway.expires", b"%d" % expires))
            value = f"{len(self._sent)} {words}"
            future = self._producer.send(self._topic, value, key=key, headers=headers, **level)
            self._sent.append(Sent(key, words.split(), expired, future))

    def _let_go(self, member: WalkMember, chance: random.Random) -> None:
        self._plan.let_go()

    def _pause(self, member: WalkMember, chance: random.Random) -> None:
        member.consumer.pause(**self._chosen_part(member, chance))

    def _resume(self, member: WalkMember, chance: random.Random) -> None:
        member.consumer.resume(**({} if chance.random() < 0.6 else self._chosen_part(member, chance)))

    def _chosen_part(self, member: WalkMember, chance: random.Random) -> dict[str, Any]:
        kind = chance.choice(["all", "topic", "level", "partitions", "partitions"])
        level = chance.randrange(self.chosen.levels or 1)
        partition = TopicPartition(self._topic, partition=chance.randrange(PARTITIONS), level=level)
        parts: dict[str, dict[str, Any]] = {
            "topic": {"topic": self._topic},
            "level": {"level": level},
            "partitions": {"partitions": [partition]},
        }
        return parts.get(kind, {})

    def _seek(self, member: WalkMember, chance: random.Random) -> None:
        """Go back to the first record that is not done yet, so that nothing is passed over on purpose."""
        level, partition = chance.randrange(self.chosen.levels or 1), chance.randrange(PARTITIONS)
        places = {offset: number for number, offset in self._offsets(level, partition).items()}
        if not places:
            return
        settled = self._settled()
        offset = next((offset for offset in sorted(places) if places[offset] not in settled), max(places))
        with suppress(ConfigError):  # it is not assigned now
            member.consumer.seek(TopicPartition(self._topic, partition=partition, level=level), offset)
            self._seeks.append((level, partition, offset))

    def _commit(self, member: WalkMember, chance: random.Random) -> None:
        member.consumer.request_commit()

    def _look(self, member: WalkMember, chance: random.Random) -> None:
        batches = self.chosen.batches
        member.look(self.chosen.options["max_concurrency"] * (batches.max_size if batches else 1))

    def _restart(self, member: WalkMember, chance: random.Random) -> None:
        self._stop(member, drain=chance.random() < 0.5)
        self._members.append(self._start())

    def _join_or_leave(self, member: WalkMember, chance: random.Random) -> None:
        if len(self._members) == 1:
            self._members.append(self._start())
        else:
            self._stop(member, drain=chance.random() < 0.5)

    def _stop(self, member: WalkMember, *, drain: bool) -> None:
        if not drain:
            self._cuts.append(time.time())
        self._members.remove(member)
        member.stop(drain=drain)

    # The ledger

    def _offsets(self, level: int, partition: int) -> dict[int, int]:
        """The offsets of the records of a partition that are acknowledged by now, by number."""
        found = {}
        for number, sent in enumerate(self._sent):
            if sent.future.done():
                stored: RecordMetadata = sent.future.result()
                if (stored.level, stored.partition) == (level, partition):
                    found[number] = stored.offset
        return found

    def _settled(self) -> set[int]:
        """The records that a seek may pass over: nothing has to become of them any more."""
        letters, outputs = set(self._letters.read()), set(self._outputs.read())
        done = outputs if self.chosen.is_transactional else {note.number for note in self._plan.notes() if note.is_end}
        drops = self.chosen.options["on_expired"] == "drop"
        return letters | done | {number for number, sent in enumerate(self._sent) if sent.expired and drops}

    def end(self) -> None:
        """Let all that was sent be done, and check that it was, as the options say."""
        assert self._producer.flush(30) == 0
        self._plan.let_go(math.inf)
        for member in self._members:
            member.consumer.resume()
        deadline = time.monotonic() + ENDS_WITHIN
        while behind := self._behind():
            figures = [member.consumer.metrics() for member in self._members]
            assert time.monotonic() < deadline, f"not done after {ENDS_WITHIN:g} s: {behind}, {figures}"
            for member in self._members:
                self._look(member, self._chance)
            threading.Event().wait(0.1)
        for member in self._members:
            idle = member.consumer.metrics()
            assert (idle.running, idle.ready, idle.remaining) == (0, 0, 0), idle
        for member in list(self._members):
            self._stop(member, drain=True)
        self._check()

    def _behind(self) -> dict[str, Any]:
        """The partitions whose commits are not at the end of their logs."""
        found = {}
        for topic in self._logs:
            commits = committed(self._cluster, topic)
            for partition, end in log_ends(self._cluster, topic).items():
                if partition not in commits or commits[partition][0] != end:
                    found[f"{topic} {partition}"] = (commits.get(partition), end)
        return found

    def _check(self) -> None:
        letters, outputs = self._letters.read(), self._outputs.read()
        notes = self._plan.notes()
        began, done = (Counter(note.number for note in notes if note.is_end is kind) for kind in (False, True))
        begun_at = defaultdict[int, list[float]](list)
        for note in notes:
            begun_at[note.number].append(note.at)
        for number, sent in enumerate(self._sent):
            stored: RecordMetadata = sent.future.result(0)
            is_bad = sent.words[-1] in ("fails", "fatal")
            said = f"record {number}, {sent}, at {stored}: began {begun_at[number]}, done {done[number]} times, "
            said += f"letters {letters[number]}, outputs {outputs[number]}, seeks {self._seeks}, cuts {self._cuts}"
            again = sum(
                (level, partition) == (stored.level, stored.partition) and offset <= stored.offset
                for level, partition, offset in self._seeks
            )
            cut = sum(any(0 <= cut - at <= _RUNNING_AT_STOP for at in begun_at[number]) for cut in self._cuts)
            if sent.expired:
                assert not began[number], f"an expired record was handled: {said}"
                least = self.chosen.options["on_expired"] == "dead_letter"
                assert least <= letters[number] <= least * (1 + again + len(self._cuts)), said
                continue
            most = 1 + again + (0 if self.chosen.is_transactional else cut)
            if is_bad:
                assert 1 <= letters[number] <= most, f"lost, or given up twice: {said}"
                assert not done[number], said
                attempts = MOST_ATTEMPTS if sent.words[-1] == "fails" else 1
                told = self._letters.attempts[number]
                assert told == attempts or (told > attempts and self._has_untried), f"{told} attempts: {said}"
                continue
            assert done[number], f"lost: {said}"
            assert not letters[number] or again, f"given up too early: {said}"
            assert done[number] <= 1 + again + cut, f"handled again without a cause: {said}"
            if self.chosen.is_transactional:
                assert 1 <= outputs[number] <= 1 + again, f"its output is lost, or there twice: {said}"
        self._check_order(notes)

    @property
    def _has_untried(self) -> bool:
        """True if some attempts do not count: those under an open circuit, and those behind a failure in a batch."""
        return bool(self.chosen.batches) or "circuit_breaker" in self.chosen.options

    def _check_order(self, notes: list[Note]) -> None:
        """First ends of each lane are in the order of the log."""
        ordering = self.chosen.options["ordering"]
        lanes = defaultdict[Any, list[Note]](list)
        first = set[int]()
        for note in notes:
            if not note.is_end or note.number in first:
                continue
            first.add(note.number)
            key = self._sent[note.number].key
            if ordering == "unordered" or (ordering == "key_if_any" and key is None):
                continue
            lanes[note.level, note.partition, None if ordering == "partition" else key].append(note)
        for lane, ends in lanes.items():
            for one, other in pairwise(ends):
                assert one.offset < other.offset, f"{lane}: {other} was done after {one}"

    def close(self) -> None:
        """Leave nothing behind, whatever has failed."""
        for member in self._members:
            with suppress(BaseException):
                member.consumer.close(drain=False)
        self._producer.close()
