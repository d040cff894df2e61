"""Members of one group under random calls, beside a model of what each was handed and what Kafka may hold of it.

The model of a member is one number a partition: the offset of the next record that it is to be handed. A record must
have just this offset; a commit must leave just this offset in Kafka; a position must be it.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import confluent_kafka as ck
import pytest

from headway.core.levels.naming import level_group, level_topic
from headway.errors import HeadwayError, KafkaError
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.priority.async_consumer import AsyncPriorityConsumer
from headway.priority.consumer import PriorityConsumer
from headway.records.record_types import ConsumerRecord, TopicPartition
from tests.contract.conftest import PARTITIONS, Cluster
from tests.made import made_by

LEVELS = 2
SETTLE_WITHIN = 60.0
A_MOMENT = 0.005  # seconds that a poll waits
_LOOK_AGAIN_AFTER = 1.0
_AMID_REBALANCES = ("rebalance in progress", "generation id is not valid")


@dataclass
class Habits:
    """What a member's callbacks do; each with so great a chance."""

    seek_when_assigned: float = 0.0
    seek_others_when_assigned: float = 0.0
    commit_when_revoked: float = 0.0
    seek_when_revoked: float = 0.0
    call_back: float = 0.0  # calls that are refused within a callback


@dataclass
class World:
    """A topic of two levels, its group, and its members."""

    cluster: Cluster
    settings: dict[str, Any]
    policy: str
    habits: Habits
    random: random.Random
    takes_commits_when_revoked: bool  # librdkafka's mock refuses commits while its group meets
    topic: str = ""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    members: list["Member"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = self.cluster.topic(LEVELS)
        self._producer = ck.Producer(self.cluster.config({"enable.idempotence": True, "log_level": 0}))
        self._groups = [
            ck.Consumer(self.cluster.config({"log_level": 0, "group.id": self._group_of(level)}))
            for level in range(LEVELS)
        ]
        self.loop = asyncio.new_event_loop()
        self.partitions = [
            TopicPartition(self.topic, partition=number, level=level)
            for level in range(LEVELS)
            for number in range(PARTITIONS)
        ]

    @property
    def has_group_per_level(self) -> bool:
        return bool(self.settings.get("group.per.level", True))

    def _group_of(self, level: int) -> str:
        return level_group(self.topic, level) if self.has_group_per_level else self.topic

    def produce(self, partition: TopicPartition, count: int) -> None:
        """Append records."""
        for _ in range(count):
            kafka_topic = level_topic(partition.topic, partition.level)
            self._producer.produce(kafka_topic, b"", partition=partition.partition)
        assert self._producer.flush(20) == 0
        self.ends[partition] = self.ends.get(partition, 0) + count

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return what Kafka has of the group; 0 where it has nothing, which is where a member then begins."""
        found: dict[TopicPartition, int] = {}
        for level, group in enumerate(self._groups):
            asked = [
                ck.TopicPartition(level_topic(each.topic, level), each.partition)
                for each in partitions
                if each.level == level
            ]
            for answer in group.committed(asked, 20) if asked else ():
                found[TopicPartition(self.topic, partition=answer.partition, level=level)] = max(answer.offset, 0)
        return found

    def join(self, *, is_async: bool) -> "Member":
        """Let one more member in."""
        member = (AsyncMember if is_async else Member)(self)
        self.members.append(member)
        return member

    def settle(self) -> None:
        """Poll all members until every partition has one of them, and each knows where it begins."""
        deadline = time.monotonic() + SETTLE_WITHIN
        while not self._is_settled():
            assert time.monotonic() < deadline, {m.number: m.next for m in self.members}
            for member in self.members:
                member.poll(A_MOMENT)

    def _is_settled(self) -> bool:
        assigned = [partition for member in self.members for partition in member.consumer.assignment()]
        if sorted(assigned) != sorted(self.partitions) or not all(m.has_each_level() for m in self.members):
            return False
        return all(partition in member.known() for member in self.members for partition in member.consumer.assignment())

    def drain(self) -> None:
        """Read on until every member was handed all that its partitions hold."""
        self.settle()
        deadline = time.monotonic() + SETTLE_WITHIN
        for member in self.members:
            member.resume(self.partitions)
        while any(at < self.ends.get(each, 0) for member in self.members for each, at in member.next.items()):
            assert time.monotonic() < deadline, [(m.next, self.ends) for m in self.members]
            for member in self.members:
                member.poll(A_MOMENT)

    def close(self) -> None:
        """End all that it began."""
        for member in self.members:
            member.consumer_close()
        for group in self._groups:
            group.close()
        self._producer.close()
        self.loop.close()


class ArrowRow(NamedTuple):
    """The place of a record in a batch of Arrow columns."""

    topic_partition: TopicPartition
    offset: int


class Member:
    """One consumer, and what it is to be handed next of each partition."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.number = len(world.members)
        self.next: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.commits_itself = world.settings.get("enable.auto.commit", False)
        self.failures: list[str] = []
        self._make()

    def _make(self) -> None:
        with made_by("headway.kafka.consumer.level_consumers.LevelConsumers") as made:
            self.consumer: Any = PriorityConsumer(self._config(), policy=self.world.policy)  # type: ignore[arg-type]
        self._sync: PriorityConsumer = self.consumer
        self._levels: LevelConsumers = made[0]
        self.consumer.subscribe(self.world.topic, self._assigned, self._revoked, self._lost)

    def _config(self) -> dict[str, Any]:
        world = self.world
        own = {"group.id": world.topic, "levels": LEVELS, "max.poll.records": 20}
        config = world.cluster.consumer_config(world.topic) | own | world.settings
        return {key: value for key, value in config.items() if value is not None}

    # Calls, each beside the model

    def poll(self, timeout: float) -> None:
        self._hand_out(self._call(self.consumer.poll, timeout))

    def iterate(self, most: int) -> None:
        for _ in range(most):
            record = self._next()
            if record is None:
                return
            self._hand_out([record])

    def consume_arrow(self, most: int) -> None:
        batch = self._call(self.consumer.consume_arrow, most, A_MOMENT)
        assert len(batch) <= most
        columns = (batch.column(name).to_pylist() for name in ("topic", "level", "partition", "offset"))
        self._hand_out(
            [
                ArrowRow(TopicPartition(topic, partition=partition, level=level), offset)
                for topic, level, partition, offset in zip(*columns, strict=True)
            ]
        )

    def _next(self) -> ConsumerRecord | None:
        return self._sync.next_now(time.monotonic())

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition in self.consumer.assignment():
            self._call(self.consumer.seek, partition, offset)
            self.next[partition] = offset

    def seek_to_end(self, partition: TopicPartition) -> None:
        if partition in self.consumer.assignment():
            self._call(self.consumer.seek_to_end, [partition])
            self.next[partition] = self.world.ends.get(partition, 0)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        mine = self.consumer.assignment() & set(partitions)
        self._call(self.consumer.pause, mine)
        self.paused |= mine

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        mine = self.consumer.assignment() & set(partitions)
        self._call(self.consumer.resume, mine)
        self.paused -= mine

    def commit(self) -> bool:
        """Return whether Kafka took it: amid a rebalance it may refuse, and the next one covers it."""
        known = self.known()
        try:
            self._call(self.consumer.commit)
        except KafkaError as error:
            if any(reason in str(error) for reason in _AMID_REBALANCES):
                return False
            raise
        self.check_committed(known)
        return True

    def commit_at_last(self) -> None:
        """Commit when the group has met."""
        deadline = time.monotonic() + SETTLE_WITHIN
        while not self.commit():
            assert time.monotonic() < deadline
            for member in self.world.members:
                member.poll(A_MOMENT)

    def check_committed(self, partitions: Collection[TopicPartition]) -> None:
        """Kafka has just what was handed out."""
        expected = {partition: self.next[partition] for partition in partitions}
        committed = self.world.committed(partitions)
        assert committed == expected, (committed, expected)

    def check_position(self, partition: TopicPartition) -> None:
        if partition in self.consumer.assignment():
            assert self._call(self.consumer.position, partition) == self.next[partition]

    def has_each_level(self) -> bool:
        """Tell whether it has heard of the group's last meeting: each member then has some of every level's group."""
        assigned = {partition.level for partition in self.consumer.assignment()}
        return assigned == set(range(LEVELS)) if self.world.has_group_per_level else bool(assigned)

    def known(self) -> set[TopicPartition]:
        """Return the partitions of which it knows already where they begin."""
        return set(self._levels.positions())

    def close(self) -> None:
        """Leave; what it commits on the way is looked at when it is told of the revocation."""
        self.consumer_close()
        self.world.members.remove(self)
        self.check_failures()

    def consumer_close(self) -> None:
        self._call(self.consumer.close)

    def check_failures(self) -> None:
        """What went wrong in a callback."""
        assert not self.failures, self.failures

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def _hand_out(self, records: Sequence[ConsumerRecord | ArrowRow]) -> None:
        self.check_failures()
        assigned = self.consumer.assignment()
        for record in records:
            partition = record.topic_partition
            assert partition in assigned
            assert partition not in self.paused
            assert record.offset == self.next[partition], (partition, record.offset, self.next[partition])
            self.next[partition] += 1

    # Callbacks

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        self._guarded(lambda: self._do_assigned(partitions))

    def _do_assigned(self, partitions: list[TopicPartition]) -> None:
        assert not self.next.keys() & set(partitions)
        self.next |= self.world.committed(partitions)
        self._call_back()
        habits = self.world.habits
        for partition in self._sync.assignment():
            is_new = partition in partitions
            if self._decides(habits.seek_when_assigned if is_new else habits.seek_others_when_assigned):
                self._seek_somewhere(partition)

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        self._guarded(lambda: self._do_revoked(partitions))

    def _do_revoked(self, partitions: list[TopicPartition]) -> None:
        self._call_back()
        known = self.known().intersection(partitions)
        if self.world.takes_commits_when_revoked:
            if self._decides(self.world.habits.commit_when_revoked):
                self._sync.commit()
                self.check_committed(known)
            elif self.commits_itself:
                self.check_committed(known)
        self._lost(partitions)
        for partition in self._sync.assignment() - set(partitions):
            if self._decides(self.world.habits.seek_when_revoked):
                self._seek_somewhere(partition)

    def _lost(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            del self.next[partition]
            self.paused.discard(partition)

    def _seek_somewhere(self, partition: TopicPartition) -> None:
        offset = self.world.random.randint(0, self.world.ends.get(partition, 0))
        self._sync.seek(partition, offset)
        self.next[partition] = offset

    def _call_back(self) -> None:
        if self._decides(self.world.habits.call_back):
            for call in (lambda: self._sync.poll(0), self._sync.close, self._sync.unsubscribe):
                with pytest.raises(HeadwayError, match="in a rebalance callback"):
                    call()

    def _decides(self, chance: float) -> bool:
        return self.world.random.random() < chance

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # the consumer would raise it from a poll, amid others
            self.failures.append(repr(error))


class AsyncMember(Member):
    """A member that is driven by an event loop."""

    def _make(self) -> None:
        with (
            made_by("headway.priority.async_consumer.PriorityConsumer") as made,
            made_by("headway.kafka.consumer.level_consumers.LevelConsumers") as levels,
        ):
            self.consumer = AsyncPriorityConsumer(self._config(), policy=self.world.policy)  # type: ignore[arg-type]
        [self._sync], [self._levels] = made, levels
        self.consumer.subscribe(self.world.topic, self._assigned, self._revoked, self._lost)

    def iterate(self, most: int) -> None:
        async def take() -> None:
            records = aiter(self.consumer)
            taken = 0
            while taken < most and self._has_records():
                # A rebalance in here may leave this member with partitions that hold nothing more.
                with contextlib.suppress(TimeoutError):
                    self._hand_out([await asyncio.wait_for(anext(records), _LOOK_AGAIN_AFTER)])
                    taken += 1

        self._run(take())

    def _has_records(self) -> bool:
        """Whether an iteration will end, unless a rebalance comes: it would wait for a record that never comes."""
        active = self.next.keys() - self.paused
        return any(self.next[partition] < self.world.ends.get(partition, 0) for partition in active)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        async def call() -> Any:
            return await function(*args)

        return self._run(call())

    def _run(self, coroutine: Any) -> Any:
        return self.world.loop.run_until_complete(asyncio.wait_for(coroutine, SETTLE_WITHIN))
