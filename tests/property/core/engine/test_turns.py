"""Turns against lists: order within a partition, and nobody waits for more than a work of each other."""

from collections import Counter, deque
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.core.engine.assignment import Assignment
from headway.core.engine.turns import PartitionTurns
from headway.core.engine.work import Work
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
    ready: list[Work[int]] = field(default_factory=list)
    passed: Counter[TopicPartition] = field(default_factory=Counter)


class TurnsOfLists(RuleBasedStateMachine):
    """Partitions of two topics, and works that come and go."""

    @initialize()
    def begin(self) -> None:
        self.turns: PartitionTurns[int] = PartitionTurns()
        self.orders = self.in_a_row = 0
        self.last = ""
        self.waiting = deque[Work[int]]()  # works that are no heads yet
        self.places: dict[TopicPartition, Place] = {}
        for place in PLACES:
            self.assign(place)

    @rule(place=places)
    def assign(self, place: TopicPartition) -> None:
        if before := self.places.get(place):
            self.turns.drop(before.assignment)
            self.waiting = deque(work for work in self.waiting if work.partition != place)
        self.places[place] = Place(Assignment(place, OffsetMap(0), 1))

    def work(self, place: TopicPartition) -> Work[int]:
        self.orders += 1
        return Work(0, self.orders, 1, None, self.places[place].assignment, float(self.orders), self.orders)

    @rule(place=places, count=st.integers(0, 5))
    def arrive(self, place: TopicPartition, count: int) -> None:
        works = [self.work(place) for _ in range(count)]
        self.turns.arrive(works)
        self.places[place].ready += works

    @rule(place=places)
    def wait(self, place: TopicPartition) -> None:
        self.waiting.append(self.work(place))

    @precondition(lambda self: self.waiting)
    @rule()
    def release(self) -> None:
        work = self.waiting.popleft()
        self.turns.release(work)
        ready = self.places[work.partition].ready
        ready.append(work)
        ready.sort(key=lambda each: each.order)

    @rule(limit=st.integers(0, 12))
    def take_many(self, limit: int) -> None:
        works = self.turns.take_many(limit)
        ready = sum(len(place.ready) for place in self.places.values())
        assert len(works) == min(limit, ready)
        for work in works:
            self.note(work)

    @precondition(lambda self: any(place.ready for place in self.places.values()))
    @rule()
    def take(self) -> None:
        first = self.turns.first()
        assert self.turns.take() is first
        self.note(first)

    def note(self, work: Work[int]) -> None:
        taken, topic = self.places[work.partition], work.partition.topic
        assert work is taken.ready.pop(0)
        for place, about in self.places.items():
            if about is taken or not about.ready:
                about.passed.clear()
            elif place.topic == topic:
                about.passed[work.partition] += 1
                assert about.passed[work.partition] <= 2  # one turn in order, and one as a newcomer
        [other] = {"mail", "sms"} - {topic}
        self.in_a_row = self.in_a_row + 1 if topic == self.last else 1
        self.last = topic
        if not any(about.ready for place, about in self.places.items() if place.topic == other):
            self.in_a_row = 0
        assert self.in_a_row <= 2

    @invariant()
    def the_counts_are_right(self) -> None:
        assert self.turns.ready == sum(len(place.ready) for place in self.places.values())
        for place in self.places.values():
            assert self.turns.ready_of(place.assignment) == len(place.ready)

    @invariant()
    def the_oldest_is_known(self) -> None:
        works = [place.ready[0] for place in self.places.values() if place.ready]
        assert self.turns.oldest() is min(works, key=lambda work: work.order, default=None)


TestTurns = TurnsOfLists.TestCase


def works(place: TopicPartition, count: int) -> list[Work[int]]:
    assignment = Assignment[int](place, OffsetMap(0), 1)
    return [Work(0, number, 1, None, assignment, 0.0, number) for number in range(count)]


def test_a_quiet_partition_goes_before_all_that_are_flooded() -> None:
    turns: PartitionTurns[int] = PartitionTurns()
    for number in range(300):
        turns.arrive(works(TopicPartition("orders", partition=number), 100))
    turns.take_many(1000)
    [quiet] = works(TopicPartition("orders", partition=300), 1)
    turns.arrive([quiet])
    assert turns.take() is quiet


def test_a_topic_with_one_partition_has_as_many_turns_as_one_with_many() -> None:
    turns: PartitionTurns[int] = PartitionTurns()
    for number in range(30):
        turns.arrive(works(TopicPartition("orders", partition=number), 100))
    turns.arrive(works(TopicPartition("mail", partition=0), 100))
    assert abs(Counter(work.partition.topic for work in turns.take_many(100))["mail"] - 50) <= 1
