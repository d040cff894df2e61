"""The life of a partition at a consumer: each state meets each event by a public call."""

import time
from collections.abc import Callable, Collection
from itertools import product
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.partition_states import PARTITION_TRANSITIONS, PartitionEvent, PartitionState, after
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Retries
from headway.execution.dispatch import Dispatch
from headway.execution.gates.expiry_gate import ExpiryGate
from headway.kafka.binding.messages import FetchedColumns
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.kafka.consumer.start_questions import StartOffset
from headway.parallel.brought_along import BroughtAlong
from headway.parallel.callbacks import Callbacks
from headway.parallel.fetching import Fetching
from headway.parallel.options import ParallelOptions
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup

ORDERS = TopicPartition("orders", partition=0)
SIZE = 600  # bytes; two records are more than the level may hold


class Level:
    """The consumer of one level, whose broker a test plays."""

    levels = (0,)
    was_member = True

    def __init__(self) -> None:
        self.client = self.membership = self.ids = self
        self.assigned = {ORDERS}
        self.log: list[Any] = []
        self.ends: dict[TopicPartition, int] = {}
        self.errors: list[Exception] = []
        self.callback_errors: list[BaseException] = []
        self.paused: set[TopicPartition] = set()
        self.answers = True

    def fetch(self, level: int, count: int, now: float) -> list[Any]:
        records, self.log = self.log, []
        return records

    fetch_quiet = fetch

    def serve(self, now: float) -> None:
        pass

    def is_settled(self, now: float) -> bool:
        return True

    def topic_id(self, partition: TopicPartition) -> str | None:
        return None

    def is_new(self, partition: TopicPartition) -> bool:
        return False

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.paused -= set(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        pass

    def start_of(self, partition: TopicPartition) -> StartOffset | None:
        return StartOffset(0) if self.answers else None


class World:
    """A consumer's fetching without Kafka."""

    def __init__(self) -> None:
        self.engine = Engine[Any](Ordering.UNORDERED, most_bytes=1000, size_of=lambda record: SIZE)
        self.wake = Wakeup()
        self.dispatch = Dispatch(self.engine, Retries(), 10, self.wake)
        self.level = Level()
        self.seen: list[PartitionState] = []  # while the partition is handed over
        levels = LevelConsumers(cast(Any, [self.level]))
        brought = BroughtAlong("group", self.dispatch, ExpiryGate(keeps=False))
        options = ParallelOptions(buffer_records=100)
        self.fetching = Fetching(self.dispatch, levels, Callbacks(self.wake), options, self, brought)
        self.inside: Callable[[], Any] = lambda: None

    def hand_over(self, partitions: Collection[TopicPartition]) -> None:
        with self.dispatch.lock:
            self.engine.retire(partitions)
        self.seen.append(self.state)
        self.inside()

    @property
    def state(self) -> PartitionState:
        return self.fetching.state_of(ORDERS)

    def fetch(self, *offsets: int) -> None:
        self.level.log = [
            SimpleNamespace(
                offset=offset,
                raw_key=b"k",
                kafka_topic="orders",
                partition=0,
                topic_partition=ORDERS,
                _message=SimpleNamespace(headers=lambda: None),
            )
            for offset in offsets
        ]
        # Only the module of fetched messages can make them, so the test says what their columns are.
        columns = FetchedColumns(list(offsets), [SIZE] * len(offsets), [len(offsets)] if offsets else [])
        with patch("headway.parallel.fetching.fetched_columns", lambda messages: columns):
            self.fetching.fetch(time.monotonic(), paused=False)

    def finish_all(self) -> None:
        with self.dispatch.lock:
            for attempt in self.engine.take(99, 0.0):
                self.engine.finish(attempt, 0.0)
        self.fetch()

    # A partition in each state, in which `act` is called

    def gone(self, act: Callable[[], Any]) -> None:
        act()

    def starting(self, act: Callable[[], Any]) -> None:
        self.fetching.assigned([ORDERS])
        act()

    def reading(self, act: Callable[[], Any]) -> None:
        self.fetching.assigned([ORDERS])
        self.fetch()
        act()

    def paused(self, act: Callable[[], Any]) -> None:
        self.reading(lambda: self.fetch(5, 6))
        self.fetch()
        assert self.level.paused == {ORDERS}
        act()

    def leaving(self, act: Callable[[], Any]) -> None:
        """Within the hand-over, as other levels are served meanwhile."""
        self.reading(lambda: None)
        self.inside = act
        self.fetching.revoked([ORDERS])

    # What happens

    def happens(self, event: PartitionEvent) -> Any:
        acts: dict[PartitionEvent, Callable[[], Any]] = {
            PartitionEvent.ASSIGNED: lambda: self.fetching.assigned([ORDERS]),
            PartitionEvent.BEGUN: self.fetch,
            PartitionEvent.REWOUND: lambda: self.fetch(3),
            PartitionEvent.FILLED: lambda: self.fetch(7, 8),
            PartitionEvent.EASED: self.finish_all,
            PartitionEvent.REVOKED: lambda: self.fetching.revoked([ORDERS]),
            PartitionEvent.ENDED: lambda: self.fetching.lost([ORDERS]),
        }
        return acts[event]()


@pytest.fixture
def world() -> Any:
    world = World()
    yield world
    world.wake.close()


@pytest.mark.parametrize(("state", "event"), list(PARTITION_TRANSITIONS), ids=lambda each: each.value)
def test_each_event_leads_where_the_table_says(world: World, state: PartitionState, event: PartitionEvent) -> None:
    reached: list[PartitionState] = []

    def act() -> None:
        assert world.state is state
        if event is PartitionEvent.REWOUND:
            world.fetch(5, 6) if state is PartitionState.PAUSED else world.fetch(5)
        world.happens(event)
        reached.append(world.seen[0] if event is PartitionEvent.REVOKED else world.state)

    getattr(world, state.value)(act)
    assert reached == [after(state, event)]


FORBIDDEN = [pair for pair in product(PartitionState, PartitionEvent) if pair not in PARTITION_TRANSITIONS]
# What means another event in that state: every fetch asks for the offset of a partition that starts, a fetch within
# room changes nothing, and a group assigns a partition only once.
OTHERWISE = {
    (PartitionState.STARTING, event): PartitionState.READING
    for event in (PartitionEvent.REWOUND, PartitionEvent.FILLED, PartitionEvent.EASED)
}
ONCE = {(state, PartitionEvent.ASSIGNED) for state in PartitionState if state is not PartitionState.GONE}


@pytest.mark.parametrize(
    ("state", "event"), [pair for pair in FORBIDDEN if pair not in OTHERWISE.keys() | ONCE], ids=lambda each: each.value
)
def test_any_other_event_changes_nothing(world: World, state: PartitionState, event: PartitionEvent) -> None:
    reached: list[PartitionState] = []

    def act() -> None:
        assert world.state is state
        if event is PartitionEvent.REVOKED:  # within a hand-over, or before anything began
            world.engine.retire([ORDERS])
        else:
            world.happens(event)
        reached.append(world.state)

    getattr(world, state.value)(act)
    assert reached == [state]
    with pytest.raises(KeyError):
        after(state, event)


def test_a_partition_whose_offset_nobody_tells_goes_on_starting(world: World) -> None:
    world.level.answers = False
    world.starting(world.fetch)
    states = [world.state]
    world.level.answers = True
    world.fetch()
    assert [*states, world.state] == [PartitionState.STARTING, PartitionState.READING]


def test_a_revoked_partition_is_handed_over_first_and_gone_then(world: World) -> None:
    world.reading(lambda: world.fetching.revoked([ORDERS]))
    assert (world.seen, world.state) == ([PartitionState.LEAVING], PartitionState.GONE)


def test_what_the_engine_is_told_of_a_partition_that_it_does_not_have_is_no_event() -> None:
    engine = Engine[Any](Ordering.UNORDERED)
    engine.retire([ORDERS])
    engine.revoke([ORDERS])
    assert engine.state_of(ORDERS) is PartitionState.GONE
    engine.assign(ORDERS, OffsetMap(0))
    engine.retire([ORDERS])
    engine.retire([ORDERS])
    assert engine.state_of(ORDERS) is PartitionState.LEAVING


def started(world: World) -> list[int]:
    with world.dispatch.lock:
        return [attempt.offset for attempt in world.engine.take(99, 0.0)]


def test_records_that_come_with_the_start_of_a_paused_partition_wait_until_it_is_resumed(world: World) -> None:
    world.fetching.pauses.begin(topic="orders")
    world.fetching.assigned([ORDERS])
    world.fetch(0)  # the commit was told by then, so that the partition begins in this fetch
    assert world.state is PartitionState.READING
    assert started(world) == []
    world.fetching.pauses.end(topic="orders")
    world.fetching.hold()
    assert started(world) == [0]


def test_a_partition_that_is_taken_up_elsewhere_while_it_is_full_is_read_on(world: World) -> None:
    def moves_in_its_log() -> None:
        world.fetching.lost([ORDERS])
        world.fetching.assigned([ORDERS])
        world.fetch()
        world.fetch()

    world.paused(moves_in_its_log)
    assert world.state is PartitionState.READING
    assert world.level.paused == set()
