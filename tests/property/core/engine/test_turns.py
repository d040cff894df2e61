"""Turns against lists: order within a partition, and nobody waits for more than an attempt of each other."""

from collections import Counter, deque
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.turns import PartitionTurns
from headway.core.offsets.offset_map import OffsetMap
from headway.records.record_types import TopicPartition

PLACES = [
    TopicPartition(topic, partition=number) for topic, count in (("mail", 3), ("sms", 2)) for number in range(count)
]
places = st.sampled_from(PLACES)


@dataclass
class Place:
    """A partition, its works in order of arrival, and who had turns while it waited."""

    assignment: Assignment[int]
    ready: list[Attempt[int]] = field(default_factory=list)
    passed: Counter[TopicPartition] = field(default_factory=Counter)


class TurnsOfLists(RuleBasedStateMachine):
    """Partitions of two topics, and attempts that come and go."""

    @initialize()
    def begin(self) -> None:
        self.turns: PartitionTurns[int] = PartitionTurns()
        self.orders = self.in_a_row = 0
        self.last = ""
        self.waiting = deque[Attempt[int]]()  # attempts that are no heads yet
        self.places: dict[TopicPartition, Place] = {}
        for place in PLACES:
            self.assign(place)

    @rule(place=places)
    def assign(self, place: TopicPartition) -> None:
        if before := self.places.get(place):
            self.turns.drop(before.assignment)
            self.waiting = deque(attempt for attempt in self.waiting if attempt.partition != place)
        self.places[place] = Place(Assignment(place, OffsetMap(0), 1))

    def attempt(self, place: TopicPartition) -> Attempt[int]:
        self.orders += 1
        return Attempt(0, self.orders, 1, None, self.places[place].assignment, float(self.orders), self.orders)

    @rule(place=places, count=st.integers(0, 5))
    def arrive(self, place: TopicPartition, count: int) -> None:
        attempts = [self.attempt(place) for _ in range(count)]
        self.turns.arrive(attempts)
        self.places[place].ready += attempts

    @rule(place=places)
    def wait(self, place: TopicPartition) -> None:
        self.waiting.append(self.attempt(place))

    @precondition(lambda self: self.waiting)
    @rule()
    def release(self) -> None:
        attempt = self.waiting.popleft()
        self.turns.release(attempt)
        ready = self.places[attempt.partition].ready
        ready.append(attempt)
        ready.sort(key=lambda each: each.order)

    @rule(limit=st.integers(0, 12))
    def take_many(self, limit: int) -> None:
        attempts = self.turns.take_many(limit)
        ready = sum(len(place.ready) for place in self.places.values())
        assert len(attempts) == min(limit, ready)
        for attempt in attempts:
            self.note(attempt)

    @precondition(lambda self: any(place.ready for place in self.places.values()))
    @rule()
    def take(self) -> None:
        first = self.turns.first()
        assert self.turns.take() is first
        self.note(first)

    def note(self, attempt: Attempt[int]) -> None:
        taken, topic = self.places[attempt.partition], attempt.partition.topic
        assert attempt is taken.ready.pop(0)
        for place, about in self.places.items():
            if about is taken or not about.ready:
                about.passed.clear()
            elif place.topic == topic:
                about.passed[attempt.partition] += 1
                assert about.passed[attempt.partition] <= 2  # one turn in order, and one as a newcomer
        [other] = {"mail", "sms"} - {topic}
        self.in_a_row = self.in_a_row + 1 if topic == self.last else 1
        self.last = topic
        if not any(about.ready for place, about in self.places.items() if place.topic == other):
            self.in_a_row = 0
        assert self.in_a_row <= 2

    @invariant()
    def the_counts_are_permission(self) -> None:
        assert self.turns.ready == sum(len(place.ready) for place in self.places.values())
        for place in self.places.values():
            assert self.turns.ready_of(place.assignment) == len(place.ready)

    @invariant()
    def the_oldest_is_known(self) -> None:
        attempts = [place.ready[0] for place in self.places.values() if place.ready]
        assert self.turns.oldest() is min(attempts, key=lambda attempt: attempt.order, default=None)


TestTurns = TurnsOfLists.TestCase


def attempts(place: TopicPartition, count: int) -> list[Attempt[int]]:
    assignment = Assignment[int](place, OffsetMap(0), 1)
    return [Attempt(0, number, 1, None, assignment, 0.0, number) for number in range(count)]


def test_a_quiet_partition_goes_before_all_that_are_flooded() -> None:
    turns: PartitionTurns[int] = PartitionTurns()
    for number in range(300):
        turns.arrive(attempts(TopicPartition("orders", partition=number), 100))
    turns.take_many(1000)
    [quiet] = attempts(TopicPartition("orders", partition=300), 1)
    turns.arrive([quiet])
    assert turns.take() is quiet


def test_a_topic_with_one_partition_has_as_many_turns_as_one_with_many() -> None:
    turns: PartitionTurns[int] = PartitionTurns()
    for number in range(30):
        turns.arrive(attempts(TopicPartition("orders", partition=number), 100))
    turns.arrive(attempts(TopicPartition("mail", partition=0), 100))
    assert abs(Counter(attempt.partition.topic for attempt in turns.take_many(100))["mail"] - 50) <= 1
